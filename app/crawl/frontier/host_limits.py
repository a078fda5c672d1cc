"""The host rate limiter: the time between the requests to each host, over all workers."""

from __future__ import annotations

import math
from pathlib import Path

from redis import Redis

from app.broker.errors import Postpone
from app.counters import HOST_WAIT_SECONDS
from app.crawl.frontier.values import LEASE, Host, host_keys
from app.errors import FetchError, RetryAfterError, ServerError
from app.redis_state.client import load_script


class HostRateLimiter:
    """Spaces out the requests to each host, over all workers.

    Reservations are kept in Redis, so that a message that has to wait occupies no worker: it is postponed. The `page`
    messages of a recorded crawl need none, for it admits as many as the host takes; its start page and seeds do.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._reserve = load_script(redis, Path(__file__).parent / "rate_limiter.lua")

    def reserve(self, host: Host, *, requester: str) -> float:
        """Return the seconds until `requester` may send its request to `host`; 0.0 means now, and counts as sent.

        The first call makes a reservation one delay after the previous one; later calls of the same requester return
        the rest of the wait. A requester that is late may go once the host has been idle for its delay.
        """
        key, in_flight, hold = host_keys(host.name)
        arguments = [requester, host.delay, host.concurrency, LEASE]
        return float(self._reserve(keys=[key, f"{key}:slots", in_flight, hold], args=arguments))

    def release(self, host: Host, *, requester: str) -> None:
        """Note that a request has ended: the delay until the next one begins."""
        key, in_flight, _ = host_keys(host.name)
        self._redis.zrem(in_flight, requester)
        if host.delay:
            seconds, micros = self._redis.time()
            self._redis.hset(key, "last", f"{seconds}.{micros:06}")

    def pause_after(self, host: Host, error: Exception) -> None:
        """Pause the requests to a host if its response demands that by Retry-After."""
        if isinstance(error, RetryAfterError):
            self.pause(host.name, error.retry_after or 0)

    def pause(self, host: str, seconds: float) -> None:
        """Allow no request to `host` for `seconds`, as its Retry-After demands, or for as long as a former one does."""
        if (milliseconds := math.ceil(seconds * 1_000)) > 0:
            hold, pipe = host_keys(host)[2], self._redis.pipeline()
            pipe.set(hold, "1", px=milliseconds, nx=True)
            pipe.pexpire(hold, milliseconds, gt=True)
            pipe.execute()


def is_pause(error: FetchError | None) -> bool:
    """Return whether a response has paused its host by Retry-After."""
    return isinstance(error, ServerError) and bool(error.retry_after)


def host_is_busy(host: Host, seconds: float, more: str = "") -> Postpone:
    """Return the error to raise for a request that has to wait for its host, and count the wait."""
    HOST_WAIT_SECONDS.add(amount=seconds)
    return Postpone(seconds, f"{host.name} gets one request in {host.delay:g} s{more}", code="host-busy")
