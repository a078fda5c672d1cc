"""A site of 200 pages among traps: sessions, calendar, facets, repeated segments, soft 404s, redirects, bombs.

Its other pages each have one reason not to be indexed, some with many long links. It names sitemaps on many hosts.
Under its second name it redirects to another site.
"""

from __future__ import annotations

import random
from calendar import month_name
from collections import Counter
from collections.abc import Callable, Iterable
from html import escape
from typing import Self
from urllib.parse import parse_qsl, urlsplit

from tests.servers.hazards import bomb, drip, endless, zipped
from tests.servers.many_sites import ManyAddresses
from tests.servers.site import Answer, Request, Site, failure, redirect, reply, robots

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
    "/noindex": "noindex",
    "/noindex-by-header": "noindex",
    "/nofollowed": "nofollow",
    "/missing": "404",
    "/gone": "410",
    "/forbidden": "403",
    "/failing": "dead-lettered",
    "/canonical": "canonical",
    "/twin-page": "duplicate",
    "/moved": "redirect",
    "/to-itself": "invalid-redirect",
    "/picture": "content-type",
    "/damaged.pdf": "unreadable",
    "/script": "empty",
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
        noindex = document("Hidden", "not to be found")
        head = {"canonical": '<link rel="canonical" href="/home">', "noindex": '<meta name="robots" content="noindex">'}
        answers = {
            "/denied/page": reply(document("Denied", "nobody reads this")),
            "/noindex": reply(document("Hidden", "not to be found", head=head["noindex"])),
            "/noindex-by-header": reply(noindex, headers={"X-Robots-Tag": "perennial: noindex"}),
            "/nofollowed": reply(document("Nofollowed", "nobody reads this")),
            "/missing": failure(404),
            "/gone": failure(410),
            "/forbidden": failure(403),
            "/failing": failure(500),
            "/canonical": reply(document("Canonical", "another form of the home page", head=head["canonical"])),
            "/twin": reply(document("Twins", "one of two")),
            "/twin-page": reply(document("Twins", "one of two")),
            "/moved": redirect("/home", status=301),
            "/to-itself": redirect("/to-itself"),
            "/picture": reply(b"\x89PNG", content_type="image/png"),
            "/damaged.pdf": reply(b"%PDF-1.4 damaged", content_type="application/pdf"),
            "/script": reply('<!doctype html><title>App</title><div id="app"></div><script src="/app.js"></script>'),
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
        return {fixed[path]} if path in fixed else traps.get(first, {"probe"})

    def text_of(self, url: str) -> str:
        """Return what pages with the same text have in common; empty for a page without text or of no budget."""
        path = urlsplit(url).path.partition(";")[0]
        first, last = path.split("/")[1], path.rstrip("/").rpartition("/")[2]
        if first == "s":
            path = "/" + "/".join(path.split("/")[3:])
        texts = {"calendar": f"month {last}", "old": "soft 404", "deeper": "deeper"}
        return path if path in self.real else texts.get(first, "")

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
