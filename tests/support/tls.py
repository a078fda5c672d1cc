"""A TLS proxy before a broker without TLS, with its own certificate authority."""

from __future__ import annotations

import asyncio
import ssl
import threading
from pathlib import Path
from urllib.parse import urlsplit

import trustme


class Encrypted:
    """Accepts TLS at `url` with a certificate of `host`, and forwards the decrypted bytes to the broker.

    Clients verify it with `authority`, a PEM file.
    """

    def __init__(self, url: str, folder: Path, *, host: str = "127.0.0.1") -> None:
        self._broker = urlsplit(url)
        authority = trustme.CA()
        self.authority = folder / "authority.pem"
        authority.cert_pem.write_to_path(str(self.authority))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(host).configure_cert(self._context)
        self._ready, self._port = threading.Event(), 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(30)
        user = self._broker.netloc.rpartition("@")[0]
        self.url = self._broker._replace(scheme="amqps", netloc=f"{user}@127.0.0.1:{self._port}").geturl()

    def close(self) -> None:
        """End all connections and stop listening."""
        self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join(30)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._closed = asyncio.Event()
        async with await asyncio.start_server(self._take, "127.0.0.1", 0, ssl=self._context) as server:
            self._port = server.sockets[0].getsockname()[1]
            self._ready.set()
            await self._closed.wait()

    async def _take(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        broker, to_broker = await asyncio.open_connection(self._broker.hostname, self._broker.port)
        await asyncio.gather(_pump(client, to_broker), _pump(broker, to_client))


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()
    except OSError:  # Either side closed its connection.
        return
    finally:
        target.close()
