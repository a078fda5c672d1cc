"""How much is searched at once: by one address in a while, and by everybody at the same time."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache

from limits import parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

#: Searches that run at the same time: fewer than there are threads, so that whatever else needs one finds one.
MAX_RUNNING = 32
#: Searches that wait for one of these to end, and the seconds that they do.
MAX_WAITING = 128
PATIENCE = 1.0

#: Seconds between two looks at all addresses for those that may be forgotten.
SWEEP = 1.0

#: The name of our one quota, in the header fields of `Allowance`.
_QUOTA = "searches"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What is left of `limit` requests in `window` seconds, until there is more in `reset` seconds, rounded up."""

    granted: bool
    limit: int
    window: int
    remaining: int
    reset: int

    @property
    def headers(self) -> dict[str, str]:
        """Say so as draft-ietf-httpapi-ratelimit-headers-10 section 3 and 4 do."""
        return {
            "RateLimit-Policy": f'"{_QUOTA}";q={self.limit};w={self.window}',
            "RateLimit": f'"{_QUOTA}";r={self.remaining};t={self.reset}',
        }


class RateLimiter:
    """Counts the requests of each address in this process's memory: two numbers for each, by a sliding window."""

    def __init__(self, rate: str) -> None:
        """Grant each address `rate`, `<number>/<second|minute|hour>`; raises ValueError for anything else."""
        self._rate = parse(rate)
        self._storage = MemoryStorage()
        self._limiter = SlidingWindowCounterRateLimiter(self._storage)
        self._rest: asyncio.Task[None] | None = None

    async def ask(self, address: str) -> Allowance:
        """Count a request and tell whether it may be answered."""
        self._rest_from_sweeping()
        key = bucket_of(address)
        granted = await self._limiter.hit(self._rate, key)
        window = await self._limiter.get_window_stats(self._rate, key)
        return Allowance(
            granted=granted,
            limit=self._rate.amount,
            window=self._rate.get_expiry(),
            remaining=window.remaining if granted else 0,
            reset=max(1, math.ceil(window.reset_time - time.time())),
        )

    def _rest_from_sweeping(self) -> None:
        """Let the storage look through all addresses for what has expired once in a while, not at each request."""
        timer = self._storage.timer
        if timer is not None and timer.done() and timer is not self._rest:
            self._storage.timer = self._rest = asyncio.create_task(asyncio.sleep(SWEEP))


class Gate:
    """Lets MAX_RUNNING in; MAX_WAITING more wait for PATIENCE seconds at most."""

    def __init__(self, *, running: int = MAX_RUNNING, waiting: int = MAX_WAITING, patience: float = PATIENCE) -> None:
        """Open it."""
        self._places = asyncio.Semaphore(running)
        self._waiting = 0
        self._max_waiting = waiting
        self._patience = patience

    @asynccontextmanager
    async def place(self) -> AsyncIterator[bool]:
        """Give a place and take it back; False where there is none in time."""
        if not await self._entered():
            yield False
            return
        try:
            yield True
        finally:
            self._places.release()

    async def _entered(self) -> bool:
        if not self._places.locked():
            return await self._places.acquire()  # At once; and a clock that is not needed is not set.
        if self._waiting >= self._max_waiting:
            return False
        self._waiting += 1
        try:
            async with asyncio.timeout(self._patience):
                await self._places.acquire()
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
        return True


@lru_cache(maxsize=4_096)
def bucket_of(address: str) -> str:
    """Return whose requests are counted together: an IPv4 address, or the /64 that an IPv6 host is given (RFC 4291)."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]  # What a proxy of ours calls it.
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((parsed, 64), strict=False))
