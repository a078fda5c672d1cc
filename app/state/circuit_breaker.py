"""A circuit breaker in Redis: all workers stop using a service that is away, and try it again together."""

from __future__ import annotations

from dataclasses import dataclass, field

from redis import Redis

from app.state.client import PREFIX


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """Stops work of all workers while a service is unavailable, so that no retries are spent on it.

    `name` is part of its keys. It stays open for `first_pause` seconds, doubled with each failure up to
    `longest_pause`, and forgets failures after `memory` seconds.
    """

    redis: Redis = field(repr=False)
    name: str
    first_pause: float
    longest_pause: float
    memory: int

    def seconds_open(self) -> float:
        """Return the seconds until requests may be sent again: 0 while it is closed."""
        return max(0.0, float(self.redis.pttl(self._until)) / 1_000)

    def open(self, retry_after: float | None = None) -> float:
        """Open it for `retry_after` seconds or longer; return the seconds. Concurrent failures count as one."""
        count = int(self.redis.get(self._count) or 0) + 1
        doubled = self.first_pause * 2.0 ** min(count - 1, 20)
        pause = min(max(doubled, retry_after or 0.0), self.longest_pause)
        if not self.redis.set(self._until, count, nx=True, px=max(1, round(pause * 1_000))):
            return self.seconds_open()
        self.redis.set(self._count, count, ex=self.memory)
        return pause

    def reset(self) -> None:
        """Forget the failures: the service answered."""
        self.redis.delete(self._count)

    @property
    def _until(self) -> str:
        return f"{PREFIX}outage:{self.name}:until"

    @property
    def _count(self) -> str:
        return f"{PREFIX}outage:{self.name}:count"
