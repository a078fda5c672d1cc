"""Searches of one process take turns: side by side, each takes 1.6 times the CPU time.

SQLite releases Python's global interpreter lock (GIL) at each row. With others at work, each row waits for it again:
eight threads answered 78 queries a second, one thread 105, eight threads with turns 109. With one thread only, a search
of a second would hold up all others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Seconds that a search waits for its turn. Then it runs beside those before it, one of which is slow.
PATIENCE: Final = 0.1


class Turns:
    """Lets one block run at a time, in the order in which their threads came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_taken = False
        self._waiting: deque[threading.Event] = deque()

    @contextmanager
    def take(self, patience: float = PATIENCE) -> Iterator[None]:
        """Run the block when it is its turn, or after `patience` seconds."""
        mine = threading.Event()
        with self._lock:
            if self._is_taken:
                self._waiting.append(mine)
            else:
                self._is_taken = True
                mine.set()
        if not mine.wait(patience):
            with self._lock:
                if not mine.is_set():
                    self._waiting.remove(mine)
        try:
            yield
        finally:
            if mine.is_set():
                with self._lock:
                    if self._waiting:
                        self._waiting.popleft().set()
                    else:
                        self._is_taken = False


#: Of all packs that this process searches.
TURNS: Final = Turns()
