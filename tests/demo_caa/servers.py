"""The archive and the web service, which tell of every request and of how they answered it."""

from __future__ import annotations

from collections.abc import Callable

from tests.servers.archive import ArchiveServer
from tests.servers.musicbrainz_ws import MusicBrainz
from tests.servers.site import Answer, Request, Wire

#: Called with a request and the status that it is about to be answered with.
Note = Callable[[Request, int], None]


class ObservedArchive(ArchiveServer):
    """The archive's stand-in, which reports each request before it answers."""

    def __init__(self, note: Note) -> None:
        super().__init__()
        self._note = note

    def route(self, request: Request) -> Answer:
        """Answer as the stand-in does."""
        return noted(super().route(request), self._note)


class ObservedWebService(MusicBrainz):
    """The web service's stand-in."""

    def __init__(self, note: Note) -> None:
        super().__init__()
        self._note = note

    def route(self, request: Request) -> Answer:
        """Answer as the stand-in does."""
        return noted(super().route(request), self._note)


def noted(answer: Answer, note: Note) -> Answer:
    """Return an answer that is noted before it is sent: what comes of it comes later."""

    def write(request: Request, wire: Wire) -> None:
        answer(request, _Noting(wire, lambda status: note(request, status)))

    return write


class _Noting(Wire):
    """A wire that reads the status from the first bytes."""

    def __init__(self, wire: Wire, note: Callable[[int], None]) -> None:
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
