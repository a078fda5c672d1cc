"""Hooks of tasks in the worker's event loop: one that cannot act yet is called again, and later ones wait behind it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from celery.utils.log import get_logger

from ..errors import Postpone

logger = get_logger(__name__)


class HookQueue:
    """Calls hooks in their order, each until it does not raise Postpone; any other exception is logged, and ends it.

    The event loop waits for one hook at a time. After a Postpone none is called for its seconds, because the others
    mostly need the same service. What waits is lost with the process. The threads of a pool may call it, too.
    """

    def __init__(self, timer: Any) -> None:
        self._timer = timer
        self._lock = threading.RLock()
        self._waiting: deque[tuple[str, Callable[[], None]]] = deque()
        self._paused = False

    def call(self, name: str, hook: Callable[[], None]) -> None:
        """Call a hook now, or when the earlier ones have been called; `name` is for the log. Never raises."""
        with self._lock:
            self._waiting.append((name, hook))
            if not self._paused:
                self._call_waiting()

    def close(self) -> None:
        """Call what waits once more, at the end of the worker, and log how many hooks could not act."""
        with self._lock:
            self._call_waiting()
            if self._waiting:
                logger.warning("Hooks not called, since the worker ends: %d", len(self._waiting))
                self._waiting.clear()

    def _call_waiting(self) -> None:
        with self._lock:
            self._paused = False
            while self._waiting:
                name, hook = self._waiting[0]
                try:
                    hook()
                except Postpone as postpone:
                    logger.warning("%s is called again in %g s: %s", name, postpone.seconds, postpone.why)
                    self._paused = True
                    self._timer.call_after(postpone.seconds, self._call_waiting)
                    return
                except Exception as error:  # noqa: BLE001 - The message is safe in the broker; a hook must not undo that.
                    logger.warning("%s failed: %r", name, error)
                self._waiting.popleft()
