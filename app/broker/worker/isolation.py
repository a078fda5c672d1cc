"""Messages that may have crashed their workers run alone, so that none of their neighbours is blamed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery.worker import state

#: Seconds before a suspect starts, and between two checks of what still runs. Other suspects that come with it, after a
#: crash or from a delay queue, are set aside first.
_CHECK_INTERVAL = 0.2


class Isolation:
    """Starts messages at once, unless a suspect waits or runs.

    A suspect waits until no other message runs in this worker, then runs alone. Other suspects that arrive meanwhile
    are set aside: if they were kept, and the worker died, they would be delivered and counted again. Messages that are
    no suspects are kept until the suspect has ended.

    A run is a Request, or has its `is_suspect` and `set_aside`.
    """

    def __init__(self, start: Callable[[Any], None], call_after: Callable[[float, Callable[[], None]], Any]) -> None:
        self._start = start
        self._call_after = call_after
        # Celery's timers are threads of their own where the pool has no event loop.
        self._lock = threading.RLock()
        self._suspect: Any = None
        self._runs_alone = False
        self._kept: list[Any] = []

    def offer(self, run: Any) -> None:
        """Start a run now, later or in another delivery."""
        with self._lock:
            if self._suspect is None and not run.is_suspect:
                self._start(run)
            elif self._suspect is None:
                self._suspect = run
                self._call_after(_CHECK_INTERVAL, self._proceed)
            elif run.is_suspect:
                run.set_aside()
            else:
                self._kept.append(run)

    def connection_lost(self) -> None:
        """Forget what has not begun: the broker delivers it again. A suspect that runs still runs alone."""
        with self._lock:
            self._kept.clear()
            if not self._runs_alone:
                self._suspect = None

    def _proceed(self) -> None:
        with self._lock:
            if self._suspect is None:
                return
            waiting = {id(run) for run in (*self._kept, None if self._runs_alone else self._suspect)}
            others_run = any(id(run) not in waiting for run in _reserved())
            if not others_run and not self._runs_alone:
                self._runs_alone = True
                self._start(self._suspect)
            elif not others_run:
                self._suspect, self._runs_alone = None, False
                kept, self._kept = self._kept, []
                for run in kept:
                    self.offer(run)
            if self._suspect is not None:
                self._call_after(_CHECK_INTERVAL, self._proceed)


def _reserved() -> list[Any]:
    """Return the requests of this worker. A pool's thread may end one meanwhile, and Python then refuses to iterate."""
    while True:
        with suppress(RuntimeError):
            return list(state.reserved_requests)
