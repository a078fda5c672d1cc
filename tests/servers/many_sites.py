"""Many small sites on one event loop, on a port or on an address each: a thread for each would poll too much."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Final, Self

from tests.servers.site import document, head

#: A group of one long rule after the other. Each byte is invalid, and becomes three bytes of UTF-8 where it is decoded.
_ROBOTS: Final = b"User-agent: *\n" + (b"Disallow: /never/" + b"\xfe" * 2_000 + b"\n") * 250
_SITEMAP: Final = b'<?xml version="1.0"?><urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"></urlset>'


class Servers(ABC):
    """Servers that a thread runs for the block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="many sites", daemon=True)
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Transport] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.listen(), self._loop).result(30)
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @abstractmethod
    async def listen(self) -> None:
        """Listen at all addresses."""

    @abstractmethod
    def answer(self, domain: str, path: str) -> bytes:
        """Return the response to a request; `domain` is the address and the port that it came to."""

    def seconds(self, domain: str) -> float:
        """Return the seconds after which a domain answers."""
        del domain
        return 0.0

    async def listen_at(self, host: str | Sequence[str], port: int = 0) -> int:
        """Listen at a port of a host, or of several; return the port."""
        server = await self._loop.create_server(lambda: _Connection(self, self._loop, self._connections), host, port)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for connection in self._connections:
            connection.abort()


class _Connection(asyncio.Protocol):
    """One connection of a client, kept open between requests."""

    def __init__(self, servers: Servers, loop: asyncio.AbstractEventLoop, open_ones: set[asyncio.Transport]) -> None:
        self._servers = servers
        self._loop = loop
        self._open = open_ones
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open.add(transport)
        self._domain = "{}:{}".format(*transport.get_extra_info("sockname"))
        self._seconds = self._servers.seconds(self._domain)

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self._open.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            request, _, self._received = self._received.partition(b"\r\n\r\n")
            answer = self._servers.answer(self._domain, request.split(b" ", 2)[1].decode("latin-1"))
            self._loop.call_later(self._seconds, self._transport.write, answer)


class ManySites(Servers):
    """Sites of `pages` pages each: `/`, `/1`, `/2`... Each page links to two others, as in a binary tree."""

    def __init__(self, sites: int, pages: int) -> None:
        super().__init__()
        self.domains: list[str] = []
        #: Requests by URL without the scheme.
        self.requests: Counter[str] = Counter()
        self._sites = sites
        self._pages = pages

    @property
    def paths(self) -> set[str]:
        """The paths of the pages of each site."""
        return {f"/{number}" if number else "/" for number in range(self._pages)}

    async def listen(self) -> None:
        self.domains = [f"127.0.0.1:{await self.listen_at('127.0.0.1')}" for _ in range(self._sites)]

    def answer(self, domain: str, path: str) -> bytes:
        self.requests[domain + path] += 1
        if path not in self.paths:
            return head(404, [("Content-Length", "0")])
        number = int(path[1:] or 0)
        links = [f"/{each}" for each in (2 * number + 1, 2 * number + 2) if each < self._pages]
        body = document(f"Page {number}", f"one of the pages of {domain}", links=["/", *links]).encode()
        fields = [("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(body)))]
        return head(200, fields) + body


class ManyAddresses(Servers):
    """`number` addresses from 127.0.1.1 on, at one port, as a wildcard name has many hosts.

    Each has a large robots.txt. Without real names, each is a host of its own.
    """

    def __init__(self, port: int, number: int) -> None:
        super().__init__()
        self._port = port
        self._hosts = [f"127.0.1.{last}" for last in range(1, number + 1)]

    @property
    def sitemaps(self) -> list[str]:
        """The URL of a sitemap on each address."""
        return [f"http://{host}:{self._port}/sitemap.xml" for host in self._hosts]

    async def listen(self) -> None:
        await self.listen_at(self._hosts, self._port)

    def answer(self, domain: str, path: str) -> bytes:
        body, kind = (_ROBOTS, "text/plain") if path == "/robots.txt" else (_SITEMAP, "application/xml")
        return head(200, [("Content-Type", kind), ("Content-Length", str(len(body)))]) + body
