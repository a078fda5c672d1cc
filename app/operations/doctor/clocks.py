"""Compare the clocks of Redis and the broker with that of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.redis_state.client import get_quick_redis
from app.topology.check import management_api
from config.settings import Settings

#: Seconds of difference that are reported. The broker's `Date` has no fractions of a second.
MAX_SKEW = 2.0


@dataclass(frozen=True, slots=True)
class ClockReading:
    """How far the clock of `owner` is ahead of this machine's, give or take `error`, both in seconds."""

    owner: str
    ahead: float
    error: float

    def is_skewed(self) -> bool:
        """Return whether the difference is certainly more than MAX_SKEW."""
        return abs(self.ahead) - self.error > MAX_SKEW

    def __str__(self) -> str:
        side = "ahead of" if self.ahead > 0 else "behind"
        return f"{self.owner} {abs(self.ahead):.1f} s {side} this machine"


def read_clock(
    owner: str, read: Callable[[], float], *, resolution: float = 0.0, now: Callable[[], float] = time.time
) -> ClockReading:
    """Read a clock, in seconds since the epoch, whose values are rounded down to `resolution` seconds.

    The reading is somewhere between the request and the answer.
    """
    before = now()
    seconds = read()
    after = now()
    ahead = seconds + resolution / 2 - (before + after) / 2
    return ClockReading(owner, ahead, (after - before + resolution) / 2)


def clock_readings(settings: Settings, connection: Any, *, now: Callable[[], float] = time.time) -> list[ClockReading]:
    """Return the readings of Redis and, with BROKER_API_URL, of the broker. Raises RedisError and ManagementFailed."""

    def redis_time() -> float:
        seconds, micros = client.time()
        return seconds + micros / 1e6

    client = get_quick_redis(settings.redis)
    client.ping()
    readings = [read_clock("Redis", redis_time, now=now)]
    if settings.broker_api:
        api = management_api(settings, connection)
        readings.append(read_clock("the broker", api.clock, resolution=1.0, now=now))
    return readings
