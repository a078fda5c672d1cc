"""Many small sites, each on a port of its own, served by one event loop: a thread for each would poll too much."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import suppress
from typing import Self

from tests.servers.site import document, head


class ManySites:
    """Sites of `pages` pages each: `/`, `/1`, `/2`... Each page links to two others, as in a binary tree."""

    def __init__(self, sites: int, pages: int) -> None:
        self.domains: list[str] = []
        #: Requests by URL without the scheme.
        self.requests: Counter[str] = Counter()
        self._sites = sites
        self._pages = pages
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="many sites", daemon=True)

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
    def paths(self) -> set[str]:
        """The paths of the pages of each site."""
        return {f"/{number}" if number else "/" for number in range(self._pages)}

    async def _listen(self) -> None:
        self._servers = [await asyncio.start_server(self._serve, "127.0.0.1", 0) for _ in range(self._sites)]
        self.domains = [f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in self._servers]

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        domain = "127.0.0.1:{}".format(writer.get_extra_info("sockname")[1])
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                path = request.split(b" ", 2)[1].decode()
                self.requests[domain + path] += 1
                writer.write(self._answer(domain, path))
        writer.close()

    def _answer(self, domain: str, path: str) -> bytes:
        if path not in self.paths:
            return head(404, [("Content-Length", "0")])
        number = int(path[1:] or 0)
        links = [f"/{each}" for each in (2 * number + 1, 2 * number + 2) if each < self._pages]
        body = document(f"Page {number}", f"one of the pages of {domain}", links=["/", *links]).encode()
        fields = [("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(body)))]
        return head(200, fields) + body
