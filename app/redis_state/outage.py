"""Outages of Redis: whether it is away, full or read-only, which is the fault of no message."""

from __future__ import annotations

from typing import Final

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from app.broker.errors import Postpone

#: Seconds that a message waits after an outage.
WITHOUT_REDIS: Final = 8.0

#: Errors of the server, whatever the command. A replica that took over has no data yet, or is read-only.
_OUTAGES = (RedisConnectionError, RedisTimeoutError, OutOfMemoryError, ReadOnlyError)

#: Codes of such errors without a class in redis-py. MISCONF: the disk is full; BUSY: a script does not end.
_OUTAGE_CODES = ("MISCONF ", "BUSY ", "LOADING ", "OOM ")


def is_outage(error: RedisError) -> bool:
    """Return whether other commands fail, too. A message whose command alone is wrong spends its budget."""
    return isinstance(error, _OUTAGES) or str(error).startswith(_OUTAGE_CODES)


def without_redis(error: RedisError) -> Postpone:
    """Return the error to raise for a message that met an outage."""
    return Postpone(WITHOUT_REDIS, f"Redis: {error}", code="redis")
