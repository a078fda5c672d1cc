"""Faults: the next requests that match a pattern get another answer than usual."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.servers.site import Answer, Request


@dataclass(slots=True)
class _Fault:
    answer: Answer
    method: str
    path: str
    times: int


class Faults:
    """A list of faults; a request uses up one of the first that matches it."""

    def __init__(self) -> None:
        self._faults: list[_Fault] = []
        self._lock = threading.Lock()

    def add(self, answer: Answer, *, method: str = "*", path: str = "*", times: int = 1) -> None:
        """Give this answer to the next `times` requests whose method and path, without query, match the patterns."""
        with self._lock:
            self._faults.append(_Fault(answer, method, path, times))

    def take(self, request: Request) -> Answer | None:
        """Return the answer of the first fault that matches a request, or None."""
        path = request.path.partition("?")[0]
        with self._lock:
            for fault in self._faults:
                if fault.times > 0 and fnmatchcase(request.method, fault.method) and fnmatchcase(path, fault.path):
                    fault.times -= 1
                    return fault.answer
        return None

    def clear(self) -> None:
        """Remove every fault."""
        with self._lock:
            self._faults.clear()
