"""The Redis clients of a process, and its Lua scripts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.commands.core import Script as RegisteredScript
from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry

from app.broker.combining import Combiner

#: Every Redis key of Perennial begins with this.
PREFIX = "perennial:"

#: Calls a Lua script with `keys` and `args`.
Script = Callable[..., Any]


class ConnectionCount:
    """Counts the connections that a client makes. After a new one, Redis may be another, or lack its last writes."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, connection: AbstractConnection) -> None:
        """Prepare a new connection as redis-py does without this, and count it before a command is sent on it."""
        connection.on_connect()  # type: ignore[no-untyped-call]  # redis-py annotates no result.
        self.number += 1


def connections_of(redis: Redis) -> Callable[[], int]:
    """Return a function that returns the number of connections so far; 0 for a client that this module did not make."""
    count = redis.connection_pool.connection_kwargs.get("redis_connect_func")
    return (lambda: count.number) if isinstance(count, ConnectionCount) else int


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
        redis_connect_func=ConnectionCount(),
    )


@functools.cache
def load_script(redis: Redis, *paths: Path) -> Script:
    """Return the Lua script of these files together, sent to Redis once and then called by its hash.

    Scripts that several threads call while one waits are sent together, and wait for one round trip.
    """
    script = redis.register_script("\n".join(path.read_text() for path in paths))
    call_combined = _combined_scripts(redis)

    def call(keys: Sequence[Any] = (), args: Sequence[Any] = ()) -> Any:
        return call_combined((script, keys, args))

    return call


_ScriptCall = tuple[RegisteredScript, Sequence[Any], Sequence[Any]]


@functools.cache
def _combined_scripts(redis: Redis) -> Combiner[_ScriptCall, Any]:
    def call_alone(call: _ScriptCall) -> Any:
        script, keys, args = call
        try:
            return script(keys=keys, args=args)
        except RedisError as error:
            return error

    def call_all(calls: Sequence[_ScriptCall]) -> list[Any]:
        if len(calls) == 1:
            return [call_alone(calls[0])]
        pipe = redis.pipeline(transaction=False)
        for script, keys, args in calls:
            pipe.evalsha(script.sha, len(keys), *keys, *args)
        replies = pipe.execute(raise_on_error=False)
        # A new Redis does not have the scripts: the first call alone loads one.
        return [
            call_alone(call) if isinstance(reply, NoScriptError) else reply
            for call, reply in zip(calls, replies, strict=True)
        ]

    return Combiner(call_all)
