"""What a running system uses, sampled in a thread: memory of Redis and of a worker, and the longest wait for a tick."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil
from redis import Redis

from app.timers.timers import MAX_TICK_PAUSE


@dataclass
class Watched:
    """Bytes that Redis and each process of a worker had more than at first, at most; seconds between two ticks."""

    redis: int = 0
    process: int = 0
    tick: float = 0.0


@contextmanager
def watching(redis: Redis, pid: int, *, every: float = 0.25) -> Iterator[Watched]:
    """Sample Redis and the processes of the worker `pid` for the block."""
    seen, ended = Watched(), threading.Event()
    first_redis = _bytes_of_redis(redis)
    first = {each.pid: each.memory_info().rss for each in psutil.Process(pid).children()}

    def sample() -> None:
        while not ended.wait(every):
            seen.redis = max(seen.redis, _bytes_of_redis(redis) - first_redis)
            left_ms = int(redis.pttl("perennial:ticked"))
            seen.tick = max(seen.tick, MAX_TICK_PAUSE - left_ms / 1_000 if left_ms >= 0 else MAX_TICK_PAUSE)
            with suppress(psutil.NoSuchProcess):
                for each in psutil.Process(pid).children():
                    rss = each.memory_info().rss
                    seen.process = max(seen.process, rss - first.setdefault(each.pid, rss))

    thread = threading.Thread(target=sample, name="watching", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def _bytes_of_redis(redis: Redis) -> int:
    return int(redis.info("memory")["used_memory"])
