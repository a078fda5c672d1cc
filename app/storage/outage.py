"""Outages of the object store: whether it is away or only one object fails, and the circuit breaker of its users."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from typing import Final

from redis import Redis

from app.errors import InvalidKey, ObjectDamaged, ObjectNotFound, PreconditionFailed, StoreError
from app.redis_state.circuit_breaker import CircuitBreaker
from app.storage.store import PROBE_PREFIX, ObjectStore

#: Bytes of the object that is written to try a store: about as many as a page has.
PROBE_SIZE: Final = 65_536

#: Seconds that the circuit breaker stays open after the first failure, doubled with each further one, and at most; and
#: seconds after which it forgets failures.
FIRST_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 60.0
FAILURE_MEMORY: Final = 300


def store_breaker(redis: Redis) -> CircuitBreaker:
    """Return the circuit breaker of the store."""
    return CircuitBreaker(
        redis, "store", "store", first_pause=FIRST_PAUSE, longest_pause=LONGEST_PAUSE, memory=FAILURE_MEMORY
    )


def is_outage(store: ObjectStore, error: StoreError) -> bool:
    """Return whether the store fails other writes, too; a new object below `probe/` is written and deleted to try it.

    Any other error concerns one message only, and uses up one of its retries.
    """
    if isinstance(error, ObjectNotFound | ObjectDamaged | InvalidKey | PreconditionFailed):
        return False
    key = f"{PROBE_PREFIX}{uuid.uuid4()}"
    try:
        store.put(key, os.urandom(PROBE_SIZE))
    except StoreError:
        return True
    with suppress(StoreError):
        store.delete(key)
    return False
