"""The Redis clients of a process, and its Lua scripts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.connection import AbstractConnection, parse_url
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

#: Every Redis key of Perennial begins with this.
PREFIX = "perennial:"

#: The port of a Sentinel whose URL names none.
SENTINEL_PORT = 26_379

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


class _Sentinels(Sentinel):
    """Sentinels whose error is a line for people: redis-py's own has every option of every client."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return the address of the master. Raises MasterNotFoundError, which is a ConnectionError."""
        try:
            return cast(tuple[str, int], super().discover_master(service_name))  # type: ignore[no-untyped-call]
        except MasterNotFoundError:
            reasons = []
            for sentinel in self.sentinels:
                address = "{host}:{port}".format_map(sentinel.connection_pool.connection_kwargs)
                try:
                    sentinel.ping()
                    reasons.append(f"{address} answers")
                except RedisError as error:
                    reasons.append(f"{address}: {error}")
            text = f"no Sentinel names a running master {service_name!r} ({'; '.join(reasons)})"
            raise MasterNotFoundError(text) from None


def open_redis(url: str, **options: Any) -> Redis:
    """Return a client of the server at `url`, or of the master that the Sentinels at `url` name for each connection.

    Sentinels are separated by semicolons. The first URL has the login and the database of the master. Its query
    has options of redis-py, the master's name and the login of the Sentinels.
    """
    if not url.startswith("sentinel"):
        return Redis.from_url(url, **options)
    nodes = [parse_url(node.replace("sentinel", "redis", 1)) for node in url.split(";") if node]  # type: ignore[no-untyped-call]
    addresses = [(node.pop("host", "localhost"), node.pop("port", SENTINEL_PORT)) for node in nodes]
    given = nodes[0]
    given["ssl"] = given.pop("connection_class", None) is not None
    name = given.pop("master_name", "mymaster")
    login = {key: given.pop(f"sentinel_{key}", None) for key in ("username", "password")}
    shared = {key: value for key, value in {**given, **options}.items() if key.startswith(("socket_", "ssl"))}
    # A Sentinel that does not answer is not tried again: the next one is.
    sentinel = _Sentinels(addresses, sentinel_kwargs={**shared, **login, "retry": None})  # type: ignore[no-untyped-call]
    return cast(Redis, sentinel.master_for(name, **given, **options))  # type: ignore[no-untyped-call]


@functools.cache
def get_redis(url: str) -> Redis:
    """Return the process's client with replies as text; its pool notices a fork and reconnects by itself."""
    return _client(url, decode_responses=True)


@functools.cache
def get_quick_redis(url: str) -> Redis:
    """Return the process's client for an event loop, with text replies: it fails within a second, without retries."""
    return open_redis(url, decode_responses=True, socket_timeout=1, socket_connect_timeout=1, retry=None)


@functools.cache
def get_raw_redis(url: str) -> Redis:
    """Return the process's client with replies as bytes."""
    return _client(url, decode_responses=False)


def _client(url: str, *, decode_responses: bool) -> Redis:
    return open_redis(
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

    redis-py loads a script that Redis lacks, and calls its hash again. Redis can lose it in between, by a restart or
    a SCRIPT FLUSH: EVAL loads and runs it at once.
    """
    text = "\n".join(path.read_text() for path in paths)
    script = redis.register_script(text)

    def call(keys: Sequence[Any] = (), args: Sequence[Any] = ()) -> Any:
        try:
            return script(keys, args)
        except NoScriptError:
            return redis.eval(text, len(keys), *keys, *args)

    return call
