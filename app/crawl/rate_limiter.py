"""Host rate limiter: reservations in Redis, so that waiting occupies neither a worker nor an open message."""

from __future__ import annotations

from pathlib import Path

from redis import Redis

from app.state.client import PREFIX, load_script


class HostRateLimiter:
    """Spaces out the requests to each host, over all workers."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._reserve = load_script(redis, Path(__file__).parent / "rate_limiter.lua")

    def reserve(self, host: str, *, requester: str, delay: float) -> float:
        """Return the seconds until `requester` may send its request to `host`; 0.0 means now, and counts as sent.

        The first call makes a reservation `delay` seconds after the previous one; later calls of the same requester
        return the rest of the wait. A requester that is late may go once the host has been idle for `delay` seconds.
        """
        pause = max(0, int(self._redis.pttl(_pause_key(host)))) / 1_000
        if pause or delay <= 0:
            return pause
        keys = [f"{PREFIX}host:{host}", f"{PREFIX}host:{host}:slots"]
        return float(self._reserve(keys=keys, args=[requester, delay]))

    def pause(self, host: str, seconds: float) -> None:
        """Allow no request to `host` for `seconds`, as its Retry-After demands."""
        if seconds > 0:
            self._redis.set(_pause_key(host), "1", px=int(seconds * 1_000))


def _pause_key(host: str) -> str:
    return f"{PREFIX}host:{host}:hold"
