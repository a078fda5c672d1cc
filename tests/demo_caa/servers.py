"""Reports of every request to a server and of how it answered."""

from __future__ import annotations

from collections.abc import Callable

from tests.servers.site import Answer, Request, Site, Wire

#: Called with a request and the status that it is about to be answered with.
Note = Callable[[Request, int], None]


def observe(server: Site, note: Note) -> None:
    """Have a server report each request before it answers: what comes of the answer comes later."""
    route = server.route

    def noted(request: Request) -> Answer:
        answer = route(request)
        return lambda request, wire: answer(request, _Noting(wire, lambda status: note(request, status)))

    server.route = noted  # type: ignore[method-assign]


class _Noting(Wire):
    """A wire that reads the status from the first bytes."""

    def __init__(self, wire: Wire, note: Callable[[int], None]) -> None:
        self.connection = wire.connection
        self._wire = wire
        self._tell: Callable[[int], None] | None = note

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        if self._tell is not None:
            self._tell(int(data.split(b" ", 2)[1]))
            self._tell = None
        self._wire.send(data)

    def pause(self, seconds: float) -> None:
        """Wait."""
        self._wire.pause(seconds)

    def close(self) -> None:
        """End the connection."""
        self._wire.close()
