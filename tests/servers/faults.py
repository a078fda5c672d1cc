"""Faults on order: the next requests of a kind get another answer than they would."""

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
    """A list of faults; the first that fits a request is used up by one."""

    def __init__(self) -> None:
        self._faults: list[_Fault] = []
        self._lock = threading.Lock()

    def add(self, answer: Answer, *, method: str = "*", path: str = "*", times: int = 1) -> None:
        """Answer so the next `times` requests whose method and path, without its query, fit these patterns."""
        with self._lock:
            self._faults.append(_Fault(answer, method, path, times))

    def take(self, request: Request) -> Answer | None:
        """Return the answer that is ordered for a request, if any."""
        path = request.path.partition("?")[0]
        with self._lock:
            for fault in self._faults:
                if fault.times > 0 and fnmatchcase(request.method, fault.method) and fnmatchcase(path, fault.path):
                    fault.times -= 1
                    return fault.answer
        return None

    def clear(self) -> None:
        """Forget every fault."""
        with self._lock:
            self._faults.clear()
