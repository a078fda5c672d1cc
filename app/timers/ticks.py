"""Whether ticks run: each finished tick sets a key in Redis that expires a minute later."""

from __future__ import annotations

import time
from collections.abc import Callable

from redis import Redis, RedisError

from app.state.client import PREFIX, get_quick_redis

#: Seconds without a tick after which timers count as stopped. Beat sends one each second.
MAX_PAUSE = 60

_TICKED = f"{PREFIX}ticked"


class TickWatch:
    """The time since the last tick, as one process sees it. Only Redis measures it: clocks of hosts do not matter."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        # A process that has just started, or a Redis that has just lost its keys, proves nothing yet.
        self._seen = time.monotonic()

    def note(self) -> None:
        """Note that a tick has run."""
        self._redis.set(_TICKED, 1, ex=MAX_PAUSE)

    def is_overdue(self) -> bool:
        """Return whether no tick ran for MAX_PAUSE seconds, all of them within the life of this object."""
        left_ms: int = self._redis.pttl(_TICKED)
        now = time.monotonic()
        if left_ms > 0:
            self._seen = max(self._seen, now - MAX_PAUSE + left_ms / 1_000)
        return now - self._seen >= MAX_PAUSE


def packing_state(redis_url: str) -> Callable[[], str]:
    """Return a function that says why no site is packed, or returns an empty text.

    A Redis that does not answer proves nothing about ticks.
    """
    watch = TickWatch(get_quick_redis(redis_url))

    def why_not() -> str:
        try:
            return f"no tick ran for {MAX_PAUSE} s, so no site is packed" if watch.is_overdue() else ""
        except RedisError:
            return ""

    return why_not
