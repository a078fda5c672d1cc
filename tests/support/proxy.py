"""A proxy before a broker that can delay, cut and refuse connections, as networks do."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from urllib.parse import urlsplit


class Proxy:
    """Forwards bytes between clients at `url` and the broker, until a method stops it."""

    def __init__(self, url: str) -> None:
        self._broker = (urlsplit(url).hostname, urlsplit(url).port)
        self._answers = threading.Event()
        self._answers.set()
        self._allowed = 0
        self._open = True
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._sockets: list[socket.socket] = []
        self._halves: set[socket.socket] = set()
        self._server = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{self._server.getsockname()[1]}"
        user = urlsplit(url).netloc.rpartition("@")[0]
        self.url = urlsplit(url)._replace(netloc=f"{user}@{address}").geturl()
        #: Connections attempted so far.
        self.tried = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, *, after: int = 0) -> None:
        """Delay the broker's bytes until `let_go`, after `after` bytes more."""
        self._allowed = after
        self._answers.clear()

    def is_holding(self) -> bool:
        """Return whether `hold` applies and the bytes that it allows have been forwarded."""
        return not self._answers.is_set() and not self._allowed

    def let_go(self) -> None:
        """Forward the delayed bytes."""
        self._answers.set()

    def cut(self, *, reopen: bool = True, half: bool = False) -> None:
        """Break every connection. Without `reopen`, also refuse new ones until `reopen` is called.

        With `half`, the broker's side stays open until `cut` is called again.
        """
        self._open = reopen
        pairs, self._pairs = self._pairs, []
        self._halves |= {broker for _, broker in pairs}
        for client, _ in pairs:
            _end(client)
        if not half:
            _end(*self._halves)
            self._halves.clear()

    def reopen(self) -> None:
        """Accept connections again."""
        self._open = True

    def close(self) -> None:
        """End all connections and stop listening."""
        self.let_go()
        self._server.close()
        _end(*self._sockets)
        for each in self._sockets:
            each.close()

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
            try:
                broker = self._connect()
            except OSError:  # The broker is away: its clients are refused until it is back.
                client.close()
                continue
            self._sockets += client, broker
            self._pairs.append((client, broker))
            self._serve(client, broker)

    def _connect(self) -> socket.socket:
        return socket.create_connection(self._broker)

    def _serve(self, client: socket.socket, broker: socket.socket) -> None:
        """Forward the bytes of a new connection, in threads."""
        threading.Thread(target=self._pump, args=(client, broker, None, bytes), daemon=True).start()
        arguments = (broker, client, self._answers, self._filter())
        threading.Thread(target=self._pump, args=arguments, daemon=True).start()

    def _filter(self) -> Callable[[bytes], bytes]:
        """Return what a new connection forwards of the broker's bytes: all."""
        return bytes

    def _pump(
        self,
        source: socket.socket,
        target: socket.socket,
        gate: threading.Event | None,
        forwarded: Callable[[bytes], bytes],
    ) -> None:
        with suppress(OSError):
            while received := source.recv(65_536):
                data = forwarded(received)
                if gate and not gate.is_set():
                    target.sendall(data[: self._allowed])
                    data, self._allowed = data[self._allowed :], max(0, self._allowed - len(data))
                    if data:
                        gate.wait()
                target.sendall(data)
        if not self._halves & {source, target}:
            _end(source, target)


class LoadBalancer(Proxy):
    """Forwards each connection to the next server that accepts one, as a balancer that checks its servers."""

    def __init__(self, urls: Sequence[str]) -> None:
        """Forward to the servers at `urls`, whose login is that of the first."""
        parts = [urlsplit(url) for url in urls]
        self._servers = [(each.hostname, each.port) for each in parts]
        self._next = itertools.cycle(range(len(parts)))
        super().__init__(urls[0])

    def _connect(self) -> socket.socket:
        for _ in self._servers:
            with suppress(OSError):
                return socket.create_connection(self._servers[next(self._next)])
        raise ConnectionRefusedError("no server accepts connections")


def _end(*sockets: socket.socket) -> None:
    """Shut connections down; closing alone would not end one that another thread reads."""
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
