"""The outage breaker: when the archive does not answer, nobody's retries are burnt on it for a while."""

from __future__ import annotations

from dataclasses import dataclass, field

from redis import Redis

from app.state.client import PREFIX

_UNTIL, _COUNT = f"{PREFIX}art:outage:until", f"{PREFIX}art:outage:count"

#: Seconds of the longest pause, and seconds after which failures are forgotten.
LONGEST, MEMORY = 600.0, 3_600


@dataclass(frozen=True, slots=True)
class Outage:
    """Whether the archive is let alone, for all workers; `first_pause` is in seconds, doubled with each failure."""

    redis: Redis = field(repr=False)
    first_pause: float

    def remaining(self) -> float:
        """Return the seconds for which nothing should be asked of the archive: 0 if it may be."""
        return max(0.0, float(self.redis.pttl(_UNTIL)) / 1_000)

    def failed(self, retry_after: float | None = None) -> float:
        """Note that the archive did not answer; return the seconds of the pause, `retry_after` at least.

        Those who asked at the same time as the first one count as one with it.
        """
        count = int(self.redis.get(_COUNT) or 0) + 1
        doubled = self.first_pause * 2.0 ** min(count - 1, 20)
        pause = min(max(doubled, retry_after or 0.0), LONGEST)
        if not self.redis.set(_UNTIL, count, nx=True, px=max(1, round(pause * 1_000))):
            return self.remaining()
        self.redis.set(_COUNT, count, ex=MEMORY)
        return pause

    def over(self) -> None:
        """Note that the archive answered."""
        self.redis.delete(_COUNT)
