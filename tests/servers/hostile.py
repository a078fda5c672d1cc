"""A site of 200 pages among traps: sessions, calendar, facets, repeated segments, soft 404s, redirects, bombs."""

from __future__ import annotations

import random
from calendar import month_name
from collections import Counter
from collections.abc import Callable, Iterable
from html import escape
from urllib.parse import parse_qsl, urlsplit

from tests.servers.hazards import bomb, drip, endless, zipped
from tests.servers.site import Answer, Request, Site, redirect, reply

PAGES = 200
_SYLLABLES = [consonant + vowel for consonant in "bdklmn" for vowel in "aeiou"]
#: Values of each parameter of the shop, and `sort`.
_FACETS = {"brand": 6, "colour": 6, "material": 5, "size": 7, "sort": 4}
#: Encodings of the real pages, in turn: the label, and whether it is in the header, early in the page, or late in it.
_ENCODINGS = (("utf-8", "header"), ("windows-1252", "header"), ("windows-1252", "meta"), ("utf-8", "none"))


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
    `hazard_hits` counts the requests by hazard.
    """

    def __init__(self, *, seed: int = 1) -> None:
        super().__init__()
        self._random = random.Random(seed)
        paths = [f"/article/{number}" if number % 2 else f"/about/{word(number)[:-1]}" for number in range(PAGES - 1)]
        self.real = {"/home": "qhome", **{path: word(number) for number, path in enumerate(paths)}}
        self._paths = list(self.real)

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
        if path == "/":
            return reply(document("Please wait", "", head='<meta http-equiv="refresh" content="2; url=/home">'))
        if path in self.real:
            return self._real(path)
        answers: dict[str, Callable[[], Answer]] = {
            "robots.txt": lambda: reply("<h1>Not found</h1>", status=404),
            "calendar": lambda: _month(path),
            "shop": lambda: _shop(query),
            "go": lambda: redirect(f"/go/{self._random_word()}"),
            "s": lambda: self._in_session(path),
            "deeper": lambda: page("Deeper", "and deeper", ["more/deeper/", "/home"]),
            "bomb": lambda: bomb(64 * 1024 * 1024),
            "endless": endless,
            "drip": lambda: drip(b"<p>slow</p>" * 20, seconds=0.01),
        }
        return answers.get(path.split("/")[1], lambda: self._soft_404(path))()

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
            links += ["/bomb", "/endless", "/drip"]
        encoding, where = _ENCODINGS[at % len(_ENCODINGS)]
        head = f'<meta charset="{encoding}">' if where == "meta" else ""
        about = self.real[path]
        data = document(f"Page {about}", f"All about {about} and others", links=links, head=head).encode(encoding)
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
