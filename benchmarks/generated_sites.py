"""Sites of generated pages for the benchmarks, served by one thread of this process, with a count of their requests."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

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


class _Connection(asyncio.Protocol):
    """One connection of a client, kept open between requests."""

    def __init__(self, site: GeneratedSite, loop: asyncio.AbstractEventLoop, open_ones: set[asyncio.Transport]) -> None:
        self._site = site
        self._loop = loop
        self._open = open_ones
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open.add(transport)

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self._open.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            path = head.split(b" ", 2)[1].decode("latin-1")
            self._loop.call_later(self._site.form.seconds, self._transport.write, self._site.answer(path))


@contextmanager
def serve_generated(forms: Sequence[SiteForm]) -> Iterator[list[GeneratedSite]]:
    """Serve a site of each form on a free port of 127.0.0.1 during the block."""
    loop = asyncio.new_event_loop()
    sites = [GeneratedSite(form) for form in forms]
    open_ones: set[asyncio.Transport] = set()
    thread = threading.Thread(target=loop.run_forever, name="sites", daemon=True)
    thread.start()

    async def start() -> list[asyncio.Server]:
        servers = []
        for site in sites:
            server = await loop.create_server(partial(_Connection, site, loop, open_ones), "127.0.0.1", 0)
            site.port = int(server.sockets[0].getsockname()[1])
            servers.append(server)
        return servers

    async def stop(servers: Sequence[asyncio.Server]) -> None:
        for server in servers:
            server.close()
        for transport in open_ones:
            transport.abort()

    servers = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield sites
    finally:
        asyncio.run_coroutine_threadsafe(stop(servers), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
