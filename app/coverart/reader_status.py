"""What the event reader and its operators tell each other in Redis: that it runs, and whether it may publish."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from redis import Redis

from app.redis_state.client import PREFIX

#: Seconds without a sign of life after which the reader counts as down: two of its longest pauses.
READER_TIMEOUT = 70.0

_SEEN = f"{PREFIX}art:reader:seen"
_PAUSED = f"{PREFIX}art:reader:paused"


@dataclass(frozen=True, slots=True)
class ReaderStatus:
    """The state of all readers of events; every method raises RedisError."""

    redis: Redis = field(repr=False)

    def touch(self) -> None:
        """Note that a reader has just read the table."""
        self.redis.set(_SEEN, time.time())

    def seconds_silent(self) -> float | None:
        """Return the seconds since a reader last read the table; None if none ever did."""
        seen = self.redis.get(_SEEN)
        return None if seen is None else max(0.0, time.time() - float(str(seen)))

    def pause(self) -> None:
        """Have all readers publish nothing until `resume`, also those that start later."""
        self.redis.set(_PAUSED, 1)

    def resume(self) -> None:
        """Let readers publish again."""
        self.redis.delete(_PAUSED)

    def is_paused(self) -> bool:
        """Return whether readers must publish nothing."""
        return bool(self.redis.exists(_PAUSED))

    def may_publish(self) -> bool:
        """Return whether a reader runs that is not paused."""
        silent = self.seconds_silent()
        return silent is not None and silent < READER_TIMEOUT and not self.is_paused()
