"""The Redis clients of a process, and its Lua scripts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

#: Every Redis key of Perennial begins with this.
PREFIX = "perennial:"

#: Calls a Lua script with `keys` and `args`.
Script = Callable[..., Any]


@functools.cache
def get_redis(url: str) -> Redis:
    """Return the process's client with replies as text; its pool notices a fork and reconnects by itself."""
    return _client(url, decode_responses=True)


@functools.cache
def get_quick_redis(url: str) -> Redis:
    """Return the process's client for an event loop, with text replies: it fails within a second, without retries."""
    return Redis.from_url(url, decode_responses=True, socket_timeout=1, socket_connect_timeout=1, retry=None)


@functools.cache
def get_raw_redis(url: str) -> Redis:
    """Return the process's client with replies as bytes."""
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


@functools.cache
def load_script(redis: Redis, *paths: Path) -> Script:
    """Return the Lua script of these files together, sent to Redis once and then called by its hash."""
    return cast(Script, redis.register_script("\n".join(path.read_text() for path in paths)))
