"""Where the demo's domain stands at one moment, put together from broker, Redis and store."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from app.pack.manifest import Manifest
from app.status import Status, status
from config.settings import Settings
from demo.witness import Depths, Event, Witness

#: Events that are shown, and seconds over which pages a second are counted.
_EVENTS, _WINDOW = 5, 3.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`indexed` of `seen` pages at `rate` pages a second; `timer` in seconds, None where none runs."""

    seen: int
    indexed: int
    open: int
    rate: float
    depths: Depths
    timer: float | None
    callback: str
    pack: Manifest | None
    consumers: int
    retried: int
    events: tuple[Event, ...]
    fresh: tuple[Event, ...]

    @property
    def progress(self) -> tuple[object, ...]:
        """What changes while anything is going on."""
        return self.seen, self.indexed, self.open, self.retried, self.depths, self.pack, self.consumers, self.timer

    def death(self, kind: str) -> str | None:
        """Return how a message of this type died lately, or None."""
        return next((event.text for event in self.events if event.kind == "dead" and event.type == kind), None)


class Watch:
    """Looks at a domain again and again."""

    def __init__(self, settings: Settings, domain: str, witness: Witness) -> None:
        self._settings = settings
        self._domain = domain
        self._witness = witness
        self._events: deque[Event] = deque(maxlen=_EVENTS)
        self._dead_pages: set[str] = set()
        self._counts: deque[tuple[float, int]] = deque()

    def snapshot(self) -> Snapshot:
        """Return how things stand now."""
        fresh = tuple(self._witness.events())
        self._events.extend(fresh)
        self._dead_pages |= {event.url for event in fresh if event.kind == "dead" and event.type == "index"}
        found = status(self._domain, settings=self._settings)
        # A page that died stays a member of its crawl, so that an earlier copy is kept; here there is none.
        indexed = max(0, found.indexed - len(self._dead_pages))
        return Snapshot(
            seen=found.seen,
            indexed=indexed,
            open=found.open,
            rate=self._rate(indexed),
            depths=self._witness.depths(),
            timer=found.timer,
            callback=found.callback or "",
            pack=_manifest(found),
            consumers=self._witness.consumers(),
            retried=self._witness.retried,
            events=tuple(self._events),
            fresh=fresh,
        )

    def replayed(self) -> None:
        """Forget the dead pages: their messages were sent back."""
        self._dead_pages.clear()

    def _rate(self, indexed: int) -> float:
        now = time.monotonic()
        self._counts.append((now, indexed))
        while len(self._counts) > 2 and self._counts[0][0] < now - _WINDOW:
            self._counts.popleft()
        (then, before), elapsed = self._counts[0], now - self._counts[0][0]
        del then
        return max(0.0, (indexed - before) / elapsed) if elapsed > 0 else 0.0


def _manifest(found: Status) -> Manifest | None:
    return Manifest(**found.pack) if found.pack else None
