"""Many small sites on one event loop, on a port or on an address each: a thread for each would poll too much."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import suppress
from typing import Final, Self

from tests.servers.site import document, head

#: A group of one long rule after the other. Each byte is invalid, and becomes three bytes of UTF-8 where it is decoded.
_ROBOTS: Final = b"User-agent: *\n" + (b"Disallow: /never/" + b"\xfe" * 2_000 + b"\n") * 250
_SITEMAP: Final = b'<?xml version="1.0"?><urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"></urlset>'


class _Servers(ABC):
    """Servers that a thread runs for the block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="many sites", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._servers = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @abstractmethod
    async def _listen(self) -> list[asyncio.Server]: ...

    @abstractmethod
    def _answer(self, domain: str, path: str) -> bytes: ...

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        domain = "{}:{}".format(*writer.get_extra_info("sockname"))
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(domain, request.split(b" ", 2)[1].decode()))
                await writer.drain()
        writer.close()


class ManySites(_Servers):
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

    async def _listen(self) -> list[asyncio.Server]:
        servers = [await asyncio.start_server(self._serve, "127.0.0.1", 0) for _ in range(self._sites)]
        self.domains = [f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
        return servers

    def _answer(self, domain: str, path: str) -> bytes:
        self.requests[domain + path] += 1
        if path not in self.paths:
            return head(404, [("Content-Length", "0")])
        number = int(path[1:] or 0)
        links = [f"/{each}" for each in (2 * number + 1, 2 * number + 2) if each < self._pages]
        body = document(f"Page {number}", f"one of the pages of {domain}", links=["/", *links]).encode()
        fields = [("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(body)))]
        return head(200, fields) + body


class ManyAddresses(_Servers):
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

    async def _listen(self) -> list[asyncio.Server]:
        return [await asyncio.start_server(self._serve, self._hosts, self._port)]

    def _answer(self, domain: str, path: str) -> bytes:
        body, kind = (_ROBOTS, "text/plain") if path == "/robots.txt" else (_SITEMAP, "application/xml")
        return head(200, [("Content-Type", kind), ("Content-Length", str(len(body)))]) + body
