"""Counts of what became of requests, from any thread."""

from __future__ import annotations

import threading
from typing import Literal, get_args

#: `searches` and `suggestions` were asked for; the rest are requests: `sent`, of these `hedged` while another one was
#: silent, `returned` by the broker, answered as `busy`, `not_here` or `failed`, `timed_out`, or answered too `late` to
#: be used. `lookups` asked the orchestrator for routes, `lookups_failed` in vain.
Count = Literal[
    "searches",
    "suggestions",
    "sent",
    "hedged",
    "returned",
    "busy",
    "not_here",
    "failed",
    "timed_out",
    "late",
    "lookups",
    "lookups_failed",
]
COUNTS: tuple[Count, ...] = get_args(Count)


class RequestCounts:
    """Counts up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = dict.fromkeys(COUNTS, 0)

    def add(self, name: Count) -> None:
        """Count one more."""
        with self._lock:
            self._counts[name] += 1

    def read(self) -> dict[str, int]:
        """Return all counts by name."""
        with self._lock:
            return self._counts.copy()
