"""A way to a broker that can be held up, cut and closed, as networks are."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit


class Proxy:
    """Passes bytes to a broker and back, until it is told otherwise."""

    def __init__(self, url: str) -> None:
        self._broker = (urlsplit(url).hostname, urlsplit(url).port)
        self._answers = threading.Event()
        self._answers.set()
        self._open = True
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{self._server.getsockname()[1]}"
        user = urlsplit(url).netloc.rpartition("@")[0]
        self.url = urlsplit(url)._replace(netloc=f"{user}@{address}").geturl()
        #: Connections that were tried so far.
        self.tried = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        """Hold back what the broker says."""
        self._answers.clear()

    def let_go(self) -> None:
        """Pass on what was held back."""
        self._answers.set()

    def cut(self, *, reopen: bool = True) -> None:
        """Break every connection; without `reopen` those that are tried from now on, too, until `reopen`."""
        self._open = reopen
        for pair in self._pairs:
            for each in pair:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def reopen(self) -> None:
        """Let connections be made again."""
        self._open = True

    def close(self) -> None:
        """Take no more connections."""
        self.let_go()
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self.tried += 1
            if not self._open:
                client.close()
                continue
            broker = socket.create_connection(self._broker)
            self._pairs.append((client, broker))
            threading.Thread(target=self._pump, args=(client, broker, None), daemon=True).start()
            threading.Thread(target=self._pump, args=(broker, client, self._answers), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, gate: threading.Event | None) -> None:
        with source, target:
            try:
                while data := source.recv(65_536):
                    if gate:
                        gate.wait()
                    target.sendall(data)
            except OSError:
                return
