"""A crawl of a site full of traps ends by itself, within its budgets, has every page, and disturbs no other site."""

from __future__ import annotations

import contextlib
import random
import re
import sqlite3
import threading
from calendar import month_name
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Self
from urllib.parse import parse_qsl, urlsplit

import psutil
import pytest
from redis import Redis

from app.crawl.frontier.frontier import Frontier
from app.crawl.record.crawls import list_crawls
from app.crawl.reports.crawl_report import read_report
from app.crawl.traps import MAX_REDIRECTS, TrapLimits
from app.redis_state.client import get_redis
from app.sites.status import status
from app.storage.open import open_store
from app.timers.timers import MAX_TICK_PAUSE
from config.settings import Settings
from tests.servers.hazards import bomb, drip, endless, zipped
from tests.servers.many_sites import ManyAddresses, ManySites
from tests.servers.site import Answer, Request, Site, failure, redirect, reply, robots
from tests.support.system import System, running_system
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]


PAGES = 200
#: Pages with `noindex` that each link to all of them, and the characters of each path: 400 kB of links in each page.
LISTS = 200
_LONG = 1_900
#: Hosts with a sitemap and a large robots.txt.
HOSTS = 60
_SYLLABLES = [consonant + vowel for consonant in "bdklmn" for vowel in "aeiou"]
#: Values of each parameter of the shop, and `sort`.
_FACETS = {"brand": 6, "colour": 6, "material": 5, "size": 7, "sort": 4}
#: Encodings of the real pages, in turn: the label, and whether it is in the header, early in the page, or late in it.
_ENCODINGS = (
    ("utf-8", "header"),
    ("windows-1252", "header"),
    ("windows-1252", "meta"),
    ("macintosh", "late"),
    ("utf-8", "none"),
)
#: What is before a late `<meta charset>`. Browsers look for one in the first 1,024 bytes.
_STYLE = f"<style>{'p { margin: 0 } ' * 200}</style>"
#: A part of a page. 48 MB of such parts take a parser 20 seconds and 3 GB.
_MARKUP = b"<p>Nothing is <a href=/>here</a></p>\n" * 20_000
#: URLs to which the home page links, and the reason code of each.
REASONS = {
    "/denied/page": "robots",
    "/nofollowed": "nofollow",
    "/failing": "dead-lettered",
    "/canonical": "canonical",
    "/twin-page": "duplicate",
    "/to-itself": "invalid-redirect",
    "/damaged.pdf": "unreadable",
    "/bomb": "content-type",
    "/endless": "too-large",
    "/drip": "indexed",
}


def document(title: str, text: str, *, links: Iterable[str] = (), head: str = "") -> str:
    """Return an HTML page whose anchors have the same texts whatever they lead to, as a site's menu has."""
    anchors = "\n".join(f'<p><a href="{escape(link)}">read on</a></p>' for link in links)
    return f"<!doctype html><html><head>{head}<title>{title}</title></head><body><h1>{title}</h1><p>{text}</p>{anchors}"


def page(title: str, text: str, links: Iterable[str]) -> Answer:
    """Answer with such a page."""
    return reply(document(title, text, links=links))


def word(number: int) -> str:
    """Return a word of the number's own: it has no digits."""
    syllables = []
    for _ in range(4):
        number, rest = divmod(number, len(_SYLLABLES))
        syllables.append(_SYLLABLES[rest])
    return "q" + "".join(reversed(syllables)) + "é"


class HostileSite(Site):
    """`with HostileSite() as site`: `real` has the paths of its pages with a word of each one's text.

    Each answer has links with a session of 12 hex digits of its own, in three ways; `seed` makes them reproducible.
    `hazard_hits` counts the requests by hazard. `neighbour` is the URL that its second name redirects to.
    """

    def __init__(self, *, seed: int = 1, neighbour: str = "") -> None:
        super().__init__()
        self._neighbour = neighbour
        self._addresses = ManyAddresses(self.port, HOSTS)
        names = [f"/lists/{word(number)[:-1]}{'x' * _LONG}" for number in range(LISTS)]
        self._list = reply(document("List", "", links=names, head='<meta name="robots" content="noindex">'))
        self._first_list = names[0]
        self._random = random.Random(seed)
        paths = [f"/article/{number}" if number % 2 else f"/about/{word(number)[:-1]}" for number in range(PAGES - 1)]
        self.real = {"/home": "qhome", **{path: word(number) for number, path in enumerate(paths)}}
        self._paths = list(self.real)

    def __enter__(self) -> Self:
        self._addresses.__enter__()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._addresses.__exit__(*error)

    def hazard_hits(self) -> Counter[str]:
        """Return the number of requests by hazard; `real` are those of real pages, `again` any more of them."""
        counted: Counter[str] = Counter()
        met: set[str] = set()
        for path in self.paths():
            plain = path.partition("?")[0].partition(";")[0]
            if plain not in self.real:
                counted[plain.split("/")[1]] += 1
            elif plain in met or plain != path:
                counted[f"again {path.partition('?')[2].partition('=')[0] or plain}"] += 1
            else:
                counted["real"] += 1
            met.add(plain)
        return counted

    def route(self, request: Request) -> Answer:
        """Return the answer to a request: any path has one."""
        path, query = urlsplit(request.path).path.partition(";")[0], dict(parse_qsl(urlsplit(request.path).query))
        if self._neighbour and request.headers.get("host") == self.other_domain:
            return redirect(self._neighbour)
        if path == "/":
            return reply(document("Please wait", "", head='<meta http-equiv="refresh" content="2; url=/home">'))
        if path in self.real:
            return self._real(path)
        answers: dict[str, Callable[[], Answer]] = {
            "robots.txt": self._robots,
            "lists": lambda: self._list,
            "calendar": lambda: _month(path),
            "shop": lambda: _shop(query),
            "go": lambda: redirect(f"/go/{self._random_word()}"),
            "s": lambda: self._in_session(path),
            "deeper": lambda: page("Deeper", "and deeper", ["more/deeper/", "/home"]),
            "sitemap.xml": lambda: bomb(48 * 1024 * 1024, block=_MARKUP, status=203),
            "bomb": lambda: bomb(64 * 1024 * 1024),
            "endless": endless,
            "drip": lambda: drip(b"<p>slow</p>" * 20, seconds=0.01),
        }
        return answers.get(path.split("/")[1], lambda: self._without_content(path) or self._soft_404(path))()

    def _robots(self) -> Answer:
        sitemaps = "\n".join(f"Sitemap: {url}" for url in (self.at("/sitemap.xml"), *self._addresses.sitemaps))
        groups = "User-agent: *\nDisallow: /\n\nUser-agent: perennial/9\nDisallow: /denied/\n"
        return robots(f"{groups}\n{sitemaps}\n")

    def _without_content(self, path: str) -> Answer | None:
        """Answer with a page that is not to be indexed, None for any other path."""
        canonical = '<link rel="canonical" href="/home">'
        answers = {
            "/denied/page": reply(document("Denied", "nobody reads this")),
            "/nofollowed": reply(document("Nofollowed", "nobody reads this")),
            "/failing": failure(500),
            "/canonical": reply(document("Canonical", "another form of the home page", head=canonical)),
            "/twin": reply(document("Twins", "one of two")),
            "/twin-page": reply(document("Twins", "one of two")),
            "/to-itself": redirect("/to-itself"),
            "/damaged.pdf": reply(b"%PDF-1.4 damaged", content_type="application/pdf"),
        }
        return answers.get(path)

    def reasons(self, url: str) -> set[str]:
        """Return the reason codes that a URL may have. A budget decides between those of a trap."""
        path, query = urlsplit(url).path, urlsplit(url).query
        plain, first = path.partition(";")[0], path.split("/")[1]
        traps = {
            "calendar": {"indexed", "identical-texts"},
            "shop": {"indexed", "query-variants"},
            "go": {"redirect", "too-many-redirects"},
            "s": {"duplicate", "identical-texts"},
            "deeper": {"indexed", "duplicate", "identical-texts", "repeated-segments"},
            "old": {"soft-404", "identical-texts"},
            "lists": {"noindex"},
        }
        if plain in self.real:
            return {"indexed"} if plain == path and not query else {"duplicate", "identical-texts", "pattern-pages"}
        fixed = {**REASONS, "/": "redirect", "/twin": "indexed", "/robots.txt": "sitemap", "/sitemap.xml": "sitemap"}
        return {fixed[path]} if path in fixed else traps.get(first, {"soft-404-check"})

    def _in_session(self, path: str) -> Answer:
        """Answer with the page after a session in the path: `/s/0123456789ab/article/1`."""
        plain = "/" + "/".join(path.split("/")[3:])
        return self._real(plain) if plain in self.real else self._soft_404(path)

    def _random_word(self) -> str:
        return word(self._random.randrange(10**5))[:-1]

    def _session(self) -> str:
        return f"{self._random.getrandbits(48):012x}"

    def _real(self, path: str) -> Answer:
        """Answer with a real page. Its links lead to the next pages, each plain and in three kinds of session."""
        at = self._paths.index(path)
        following = [self._paths[(at + step) % PAGES] for step in (1, 2, 3, 7)]
        links = [variant for target in following for variant in self._variants(target)]
        links += ["/calendar/2026/11/", "/shop", "/deeper/", f"/old/{word(at + 900)[:-1]}/", "/go/on"]
        if path == "/home":
            links += [*(REASONS.keys() - {"/nofollowed"}), "/twin", self._first_list]
        encoding, where = _ENCODINGS[at % len(_ENCODINGS)]
        meta = f'<meta charset="{encoding}">'
        head = {"meta": meta, "late": _STYLE + meta}.get(where, "")
        about = self.real[path]
        markup = document(f"Page {about}", f"All about {about} and others", links=links, head=head)
        markup += '<p><a rel="nofollow" href="/nofollowed">read on</a></p>'
        data = markup.encode(encoding)
        kind = f"text/html; charset={encoding}" if where == "header" else "text/html"
        return zipped(data, content_type=kind) if at % 5 == 0 else reply(data, content_type=kind)

    def _variants(self, target: str) -> Iterable[str]:
        yield target
        yield f"{target}?sid={self._session()}"
        yield f"{target};jsessionid={self._session()}"
        yield f"{target}?visit={self._session()}"
        yield f"/s/{self._session()}{target}"
        yield f"{target}?utm_source=page&fbclid={self._session()}"

    def _soft_404(self, path: str) -> Answer:
        """Answer 200 to a page that does not exist. It names the path, and leads to more such pages."""
        return page("Oops", f"Nothing is at {path}, sorry", ["/home", *(f"/old/{self._random_word()}/" for _ in "123")])


def _month(path: str) -> Answer:
    """Answer with a month of a calendar without end in both directions."""
    parts = [part for part in path.split("/")[2:] if part.isdigit()]
    year, month = (int(parts[0]), int(parts[1])) if len(parts) > 1 else (2026, 11)
    links = [f"/calendar/{year + (month + step - 1) // 12}/{(month + step - 1) % 12 + 1}/" for step in (-1, 1, 12)]
    days = " ".join(str(day) for day in range(1, 29))
    return page(f"{month_name[(month - 1) % 12 + 1]} {year}", f"No events. {days}", links)


def _shop(query: dict[str, str]) -> Answer:
    """Answer with a list of wares, and links that each set one more facet to one of its values."""
    chosen = {name: query[name] for name in sorted(_FACETS) if query.get(name, "").isdigit()}
    wares = " ".join(
        word(5_000 + sum(int(value) * at for at, value in enumerate(chosen.values(), 1)) + n) for n in range(9)
    )
    links = []
    for name, values in _FACETS.items():
        for value in range(1, values + 1):
            facets = "&".join(f"{each}={number}" for each, number in (chosen | {name: str(value)}).items())
            links.append(f"/shop?{facets}")
    return page(f"Wares {' '.join(f'{name} {value}' for name, value in chosen.items())}", wares, links)


@dataclass
class Watched:
    """Bytes that Redis and each process of a worker had more than at first, at most; seconds between two ticks."""

    redis: int = 0
    process: int = 0
    tick: float = 0.0


@contextmanager
def watching(redis: Redis, pid: int, *, every: float = 0.25) -> Iterator[Watched]:
    """Sample Redis and the processes of the worker `pid` for the block."""
    seen, ended = Watched(), threading.Event()
    first_redis = _bytes_of_redis(redis)
    first = {each.pid: each.memory_info().rss for each in psutil.Process(pid).children()}

    def sample() -> None:
        while not ended.wait(every):
            seen.redis = max(seen.redis, _bytes_of_redis(redis) - first_redis)
            left_ms = int(redis.pttl("perennial:ticked"))
            seen.tick = max(seen.tick, MAX_TICK_PAUSE - left_ms / 1_000 if left_ms >= 0 else MAX_TICK_PAUSE)
            with suppress(psutil.NoSuchProcess):
                for each in psutil.Process(pid).children():
                    rss = each.memory_info().rss
                    seen.process = max(seen.process, rss - first.setdefault(each.pid, rss))

    thread = threading.Thread(target=sample, name="watching", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def _bytes_of_redis(redis: Redis) -> int:
    return int(redis.info("memory")["used_memory"])


MIB = 2**20
#: Pages of each neighbour.
NEIGHBOUR_PAGES = 20
#: URLs of the shop without a parameter, or with one: the budget counts those with more.
PLAIN_SHOP = 1 + 28


def packed_pages(system: System, domain: str) -> dict[str, str]:
    """Return the titles of a domain's packed pages by path."""
    with contextlib.closing(sqlite3.connect(system.pack(domain))) as pack:
        return dict(pack.execute("SELECT path, title FROM pages"))


def test_a_crawl_of_a_hostile_site_ends_within_its_budgets_with_every_page_and_disturbs_no_other(
    environment: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    redis = get_redis(settings.redis)
    with contextlib.ExitStack() as running:
        neighbours = running.enter_context(ManySites(2, NEIGHBOUR_PAGES))
        first, second = neighbours.domains
        site = running.enter_context(HostileSite(neighbour=f"http://{first}/5"))
        ports = ",".join(domain.rpartition(":")[2] for domain in neighbours.domains)
        changed = {"SOFT_404_CHECK": "true", "RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "1", "ALLOW_PORTS": ports}
        system = running.enter_context(running_system({**environment, **changed}, settings, tmp_path))
        system.post("index+crawl", url=f"http://{first}/")
        packed = system.packed(first)
        with watching(redis, system.worker.process.pid) as used:
            system.post("index+crawl", url=site.url)
            eventually(lambda: site.hazard_hits()["real"] > 20, "the hostile site is crawled", seconds=200)
            system.post("index+crawl", url=f"http://{second}/")
            system.post("index+crawl", url=f"http://{site.other_domain}/")
            assert system.packed(second, seconds=200).pages == NEIGHBOUR_PAGES
            system.packed(site.domain, seconds=400)

        moved = status(site.other_domain, settings=settings).reasons
        assert moved == {"moved-to-known-site": 1}
        assert system.manifest(first) == packed
        assert packed.pages == NEIGHBOUR_PAGES
        assert [crawl.moves for crawl in list_crawls(open_store(settings.store), first)] == [0]

        check_pages(system, site, settings)
        check_requests(site)
        print(
            f"Redis +{used.redis / MIB:.1f} MB, a process +{used.process / MIB:.1f} MB, {used.tick:.1f} s between ticks"
        )
        assert not re.findall(r"Dropped \S*tick.*", system.worker.log)
        assert used.tick < 30
        assert used.redis < 50 * MIB
        assert used.process < 300 * MIB


def check_pages(system: System, site: HostileSite, settings: Settings) -> None:
    """Assert that each real page is packed, and that each URL has the reason that it should have."""
    pages = packed_pages(system, site.domain)
    assert {path: pages.get(path) for path in site.real} == {path: f"Page {w}" for path, w in site.real.items()}
    progress = system.progress(site.domain)
    assert (progress.open, progress.waiting, progress.dead) == (0, 0, 1)
    reasons = status(site.domain, settings=settings).reasons
    budgets = {"query-variants", "identical-texts", "repeated-segments", "too-many-redirects"}
    assert {reason for reason in budgets if reasons.get(reason)} == budgets, reasons
    report = read_report(Frontier(get_redis(settings.redis)), open_store(settings.store), site.domain)
    assert report is not None
    rows = list(report.rows())
    found = {str(row["url"]): str(row["reason"]) for row in rows}
    [sitemap] = [str(row["detail"]) for row in rows if row["url"] == site.at("/sitemap.xml")]
    assert sitemap.startswith("0 of 0 URLs"), "the sitemap's markup was not read as a sitemap"
    wrong = {url: reason for url, reason in found.items() if reason not in site.reasons(url)}
    assert not wrong, Counter(wrong.values())
    assert {path: found.get(site.at(path)) for path in REASONS} == REASONS


def check_requests(site: HostileSite) -> None:
    """Assert that no URL was requested twice, and that each trap without a budget of texts ended within its own."""
    again = {path: n for path, n in Counter(site.paths()).items() if n > 1 and path not in ("/failing", "/robots.txt")}
    # Both names of the site have its start page.
    assert again == {"/": 2}
    hits = site.hazard_hits()
    assert hits["go"] == MAX_REDIRECTS + 1
    assert hits["shop"] <= TrapLimits().query_variants + PLAIN_SHOP
    assert hits["lists"] == LISTS
    print(f"{len(site.paths())} requests: {hits}")
