"""What happens while the demo runs, in the order in which it is seen."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass

_GID = re.compile(r"([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class DemoEvent:
    """One thing that happened. `label` is one short word."""

    label: str
    text: str


class Events:
    """Takes events from any thread, and gives them out in their order."""

    def __init__(self) -> None:
        self._events: list[DemoEvent] = []
        self._lock = threading.Lock()
        self.last = time.monotonic()

    def add(self, event: DemoEvent) -> None:
        """Note an event."""
        with self._lock:
            self._events.append(event)
            self.last = time.monotonic()

    def take(self) -> list[tuple[DemoEvent, int]]:
        """Remove and return what happened since, equal ones in a row as one with their number."""
        with self._lock:
            taken, self._events = self._events, []
        counted: list[tuple[DemoEvent, int]] = []
        for event in taken:
            if counted and counted[-1][0] == event:
                counted[-1] = (event, counted[-1][1] + 1)
            else:
                counted.append((event, 1))
        return counted


def short(text: str) -> str:
    """Return a text in which of each gid the beginning is left."""
    return _GID.sub(r"\1…", text)
