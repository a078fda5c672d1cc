"""The Redis connection of a process, and its Lua scripts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

#: Every key of ours begins with this.
PREFIX = "perennial:"

#: What one Lua script takes and gives.
Script = Callable[..., Any]


@functools.cache
def get_redis(url: str) -> Redis:
    """Return the process's client with text answers; its pool notices a fork and reconnects by itself."""
    return _client(url, decode_responses=True)


@functools.cache
def get_quick_redis(url: str) -> Redis:
    """Return the process's client for an event loop: it answers as text, or fails within a second, and tries once."""
    return Redis.from_url(url, decode_responses=True, socket_timeout=1, socket_connect_timeout=1, retry=None)


@functools.cache
def get_raw_redis(url: str) -> Redis:
    """Return the process's client with answers as bytes."""
    return _client(url, decode_responses=False)


def _client(url: str, *, decode_responses: bool) -> Redis:
    return Redis.from_url(
        url,
        decode_responses=decode_responses,
        socket_timeout=10,
        socket_connect_timeout=5,
        retry=Retry(ExponentialBackoff(cap=1, base=0.05), 5),
        retry_on_error=[RedisConnectionError],
    )


def load_script(redis: Redis, path: Path) -> Script:
    """Register the Lua script of a file: sent once, then called by its hash."""
    return cast(Script, redis.register_script(path.read_text()))
