"""One port on many loopback addresses, as a wildcard name has many hosts: each with a large robots.txt."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Self

from tests.servers.site import head

#: A group of one long rule after the other. Each byte is invalid, and becomes three bytes of UTF-8 where it is decoded.
_ROBOTS = b"User-agent: *\n" + (b"Disallow: /never/" + b"\xfe" * 2_000 + b"\n") * 250
_SITEMAP = b'<?xml version="1.0"?><urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"></urlset>'


class ManyAddresses:
    """`number` addresses from 127.0.1.1 on, at one port. Without real names, each address is a host of its own."""

    def __init__(self, port: int, number: int) -> None:
        self.hosts = [f"127.0.1.{last}" for last in range(1, number + 1)]
        self.port = port
        self.requests = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="many addresses", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def sitemaps(self) -> list[str]:
        """The URL of a sitemap on each address."""
        return [f"http://{host}:{self.port}/sitemap.xml" for host in self.hosts]

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.hosts, self.port)

    async def _close(self) -> None:
        self._server.close()
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                path = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1]
                self.requests += 1
                body, kind = (_ROBOTS, "text/plain") if path == b"/robots.txt" else (_SITEMAP, "application/xml")
                writer.write(head(200, [("Content-Type", kind), ("Content-Length", str(len(body)))]) + body)
                await writer.drain()
        writer.close()
