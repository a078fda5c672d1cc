"""Parts of an overview: each is gathered in a thread of its own, so that a page never waits for a silent service."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from redis import RedisError

from app.broker.errors import ApplicationError, error_text

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartReading(Generic[T]):
    """The last value of a part, and the seconds since it was gathered. `trouble` says why it is missing now."""

    value: T | None = None
    trouble: str = ""
    age: float = 0.0

    def required(self, error: type[ApplicationError]) -> T:
        """Return the value; raises `error` with the trouble where it is missing."""
        if self.value is None:
            raise error(self.trouble)
        return self.value


class Part(Generic[T]):
    """A value that is gathered at most once in `every` seconds, and only when it is read.

    `gather` runs in a thread. Its errors of services become the `trouble` of the reading.
    """

    def __init__(self, name: str, gather: Callable[[], T], *, every: float) -> None:
        self._name, self._gather, self._every = name, gather, every
        self._changed = threading.Condition()
        self._is_gathering = self._is_outdated = False
        self._began = 0.0
        self._gathered: tuple[float, PartReading[T]] | None = None

    def start(self) -> None:
        """Begin to gather, if the value is too old, and do not wait."""
        with self._changed:
            is_new = self._gathered is not None and time.monotonic() - self._gathered[0] < self._every
            if self._is_gathering or is_new:
                return
            self._is_gathering, self._began = True, time.monotonic()
        threading.Thread(target=self._run, name=f"overview-{self._name}", daemon=True).start()

    def read(self, until: float, *, fresh: bool = True) -> PartReading[T]:
        """Return the value, after waiting for it at most `until`, in monotonic seconds.

        Without `fresh` a former value is returned at once, however old it is.
        """
        self.start()
        with self._changed:
            while self._is_gathering and (fresh or self._gathered is None):
                left = until - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            now = time.monotonic()
            if fresh and self._is_gathering and now - self._began > self._every:
                return PartReading(trouble=f"no answer for {now - self._began:.0f} s")
            if self._gathered is None:
                return PartReading(trouble="no answer yet")
            at, reading = self._gathered
            return PartReading(reading.value, reading.trouble, now - at)

    def forget(self) -> None:
        """Let the next reading gather the value again, such as after an act."""
        with self._changed:
            # What is being gathered now may have been read before the act.
            self._gathered, self._is_outdated = None, self._is_gathering

    def _run(self) -> None:
        while True:
            try:
                reading = PartReading(self._gather())
            except (ApplicationError, RedisError, OSError) as error:
                reading = PartReading(trouble=error_text(error))
            except Exception as error:
                # A page that waits for this thread shows it, as any other finding.
                logger.exception("The part %s of the overview cannot be gathered", self._name)
                reading = PartReading(trouble=f"{type(error).__name__}; the log of the web process has the details")
            with self._changed:
                if not self._is_outdated:
                    self._gathered = (time.monotonic(), reading)
                    self._is_gathering = False
                    self._changed.notify_all()
                    return
                self._is_outdated = False
