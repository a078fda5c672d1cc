"""Limits of the web process: requests of each address in a time, and requests at the same time."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Network, ip_address

from limits import parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

#: Searches that run at the same time: fewer than the server has threads, so monitoring finds a free one.
MAX_RUNNING = 32
#: Searches that wait until another one ends.
MAX_WAITING = 128
#: Seconds that a search waits.
PATIENCE = 1.0

#: Seconds between two removals of expired addresses.
SWEEP = 1.0

#: The name of the quota in the header fields.
_QUOTA = "searches"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What is left of `limit` requests in `window` seconds, and the seconds (rounded up) until more is left."""

    granted: bool
    limit: int
    window: int
    remaining: int
    reset: int

    @property
    def headers(self) -> dict[str, str]:
        """The header fields of draft-ietf-httpapi-ratelimit-headers-10 sections 3 and 4."""
        return {
            "RateLimit-Policy": f'"{_QUOTA}";q={self.limit};w={self.window}',
            "RateLimit": f'"{_QUOTA}";r={self.remaining};t={self.reset}',
        }


class RateLimiter:
    """Counts the requests of each address in this process's memory, by a sliding window of two numbers each."""

    def __init__(self, rate: str) -> None:
        """Grant each address `rate`, `<number>/<second|minute|hour>`; raises ValueError for anything else."""
        self._rate = parse(rate)
        self._storage = MemoryStorage()
        self._limiter = SlidingWindowCounterRateLimiter(self._storage)
        self._sweep_pause: asyncio.Task[None] | None = None

    async def hit(self, address: str, cost: int = 1) -> Quota:
        """Count a request and return what is left. A request that costs more than the rate takes all of it.

        Expired addresses are removed once in SWEEP seconds: the storage would visit all of them at each request. It
        starts a sweep when its task `timer` is done, so a task that only sleeps takes its place.
        """
        timer = self._storage.timer
        if timer is not None and timer.done() and timer is not self._sweep_pause:
            self._storage.timer = self._sweep_pause = asyncio.create_task(asyncio.sleep(SWEEP))
        key = client_key(address)
        granted = await self._limiter.hit(self._rate, key, cost=min(cost, self._rate.amount))
        window = await self._limiter.get_window_stats(self._rate, key)
        return Quota(
            granted=granted,
            limit=self._rate.amount,
            window=self._rate.get_expiry(),
            remaining=window.remaining,
            reset=max(1, math.ceil(window.reset_time - time.time())),
        )


class ConcurrencyLimit:
    """Admits `running` searches at a time. `waiting` more wait, each at most `patience` seconds."""

    def __init__(self, *, running: int = MAX_RUNNING, waiting: int = MAX_WAITING, patience: float = PATIENCE) -> None:
        """Start with all places free."""
        self._free = asyncio.Semaphore(running)
        self._waiting = 0
        self._max_waiting = waiting
        self._patience = patience

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[bool]:
        """Hold a place for the block; yield False if none became free in time."""
        admitted: bool
        if not self._free.locked():
            admitted = await self._free.acquire()  # Does not wait, so it needs no timer.
        elif self._waiting >= self._max_waiting:
            admitted = False
        else:
            self._waiting += 1
            try:
                async with asyncio.timeout(self._patience):
                    admitted = await self._free.acquire()
            except TimeoutError:
                admitted = False
            finally:
                self._waiting -= 1
        try:
            yield admitted
        finally:
            if admitted:
                self._free.release()


def plain_address(address: str) -> str:
    """Return an address of IPv4 without the form that it has as one of IPv6 (RFC 4291 section 2.5.5.2)."""
    with suppress(ValueError):
        return str(getattr(ip_address(address), "ipv4_mapped", None) or address)
    return address


@lru_cache(maxsize=4_096)
def client_key(address: str) -> str:
    """Return the key of a client's quota: its IPv4 address, or the /64 network of its IPv6 address (RFC 4291)."""
    plain = plain_address(address)
    with suppress(ValueError):
        return str(IPv6Network((plain, 64), strict=False))
    return plain[:64]  # An address of IPv4, or a name that a proxy gave.
