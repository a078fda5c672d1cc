"""Sites of generated pages for the benchmarks, served by one thread of this process, with a count of their requests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.servers.many_sites import Servers

_TEXT = """river stone cloud lantern meadow copper thread harbour window candle forest mirror ladder bridge anchor
garden marble feather engine basket"""
_WORDS = _TEXT.split()
#: Words of a page, and links to pages that are seen already.
WORDS, SEEN_LINKS = 200, 10


@dataclass(frozen=True, slots=True)
class SiteForm:
    """The form of a site: a tree of `pages` pages, each with up to `links` links to pages that no other page leads to.

    Every page answers after `seconds`.
    """

    pages: int
    links: int = 10
    seconds: float = 0.0

    def page(self, number: int) -> bytes:
        """Return the HTML of a page."""
        first = number * self.links + 1
        seen = range(max(0, number - SEEN_LINKS), number)
        numbers = (*seen, *range(first, min(first + self.links, self.pages)))
        links = "\n".join(f'<li><a href="{path_of(each)}">{title_of(each)}</a></li>' for each in numbers)
        title = title_of(number)
        text = " ".join(_WORDS[(number * 7 + each * each) % len(_WORDS)] for each in range(WORDS))
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head><body>'
            f"<h1>{title}</h1><p>{text}</p><ul>{links}</ul></body></html>"
        ).encode()


def path_of(number: int) -> str:
    """Return the path of a page, words without digits: a crawl has budgets for URLs that differ in digits alone.

    The start page is `/`.
    """
    return f"/{'-'.join(_digits(number))}"


def number_of(path: str) -> int:
    """Return the number of a page by its path; raises ValueError for any other path."""
    number = 0
    for word in filter(None, path[1:].split("-")):
        number = number * len(_WORDS) + _WORDS.index(word)
    if path != path_of(number):
        raise ValueError(f"path {path!r}: no page has it")
    return number


def title_of(number: int) -> str:
    """Return the title of a page: no two pages have the same."""
    return " ".join(("Page", *_digits(number)))


def _digits(number: int) -> list[str]:
    """Return a number by its digits, of which each is a word."""
    words: list[str] = []
    while number:
        number, digit = divmod(number, len(_WORDS))
        words.insert(0, _WORDS[digit])
    return words


@dataclass(slots=True)
class GeneratedSite:
    """A served site. `requests` counts those for its pages; `first` is when each of its first ten pages was requested.

    Times are monotonic seconds.
    """

    form: SiteForm
    port: int = 0
    requests: int = 0
    first: dict[int, float] = field(default_factory=dict)

    @property
    def domain(self) -> str:
        """Host and port, as messages name it."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The URL of the start page."""
        return f"http://{self.domain}/"

    def answer(self, path: str) -> bytes:
        """Return the response to a request, and count it."""
        try:
            number = number_of(path)
        except ValueError:
            return _response("404 Not Found", b"")
        if number >= self.form.pages:
            return _response("404 Not Found", b"")
        self.requests += 1
        if len(self.first) < 10:
            self.first.setdefault(number, time.monotonic())
        return _response("200 OK", self.form.page(number))


def _response(status: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class _GeneratedSites(Servers):
    def __init__(self, forms: Sequence[SiteForm]) -> None:
        super().__init__()
        self.sites = [GeneratedSite(form) for form in forms]
        self._by_domain: dict[str, GeneratedSite] = {}

    async def listen(self) -> None:
        for site in self.sites:
            site.port = await self.listen_at("127.0.0.1")
            self._by_domain[site.domain] = site

    def answer(self, domain: str, path: str) -> bytes:
        return self._by_domain[domain].answer(path)

    def seconds(self, domain: str) -> float:
        return self._by_domain[domain].form.seconds


@contextmanager
def serve_generated(forms: Sequence[SiteForm]) -> Iterator[list[GeneratedSite]]:
    """Serve a site of each form on a free port of 127.0.0.1 during the block."""
    with _GeneratedSites(forms) as servers:
        yield servers.sites
