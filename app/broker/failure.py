"""Why a run of a message failed, as a value."""

from __future__ import annotations

from dataclasses import dataclass

#: Characters of a traceback, and of an error's message, that travel with a dead message.
MAX_TRACEBACK, MAX_MESSAGE = 6_000, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why one run of a message failed, as text that can be pickled. `at` is in seconds since the epoch."""

    reason: str
    exception: str
    message: str
    traceback: str = ""
    permanent: bool = False
    at: float = 0.0
    worker: str = ""
    task: str = ""

    def __str__(self) -> str:
        return f"{self.exception}: {self.message}".removeprefix(": ")
