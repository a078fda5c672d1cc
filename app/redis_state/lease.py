"""Leases in Redis: at most one holder, renewed while it lives, free soon after it died."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from redis import Redis
from redis.exceptions import LockError, RedisError
from redis.lock import Lock

from app.broker.errors import Postpone
from app.redis_state.client import PREFIX


class Renewer:
    """Renews leases every `seconds` / 3 until they are removed; one thread serves all of them."""

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        self._renewals: dict[str, Callable[[], object]] = {}
        self._thread: threading.Thread | None = None

    def add(self, key: str, renew: Callable[[], object]) -> None:
        """Call `renew` regularly from now on, within `seconds` / 3; the first call of this method starts the thread."""
        self._renewals[key] = renew
        if self._thread is None:
            thread = threading.Thread(target=self._renew_all, daemon=True)
            thread.start()
            self._thread = thread

    def remove(self, key: str) -> None:
        """Stop renewing a lease."""
        self._renewals.pop(key, None)

    def _renew_all(self) -> None:
        never = threading.Event()
        while not never.wait(self._seconds / 3):
            for renewal in list(self._renewals.values()):
                # An unreachable Redis is tried again in the next round; a lost lease stays lost.
                with suppress(RedisError):
                    renewal()


#: The renewers by process, whose threads a forked child does not have, and by the seconds of their leases.
_renewers: dict[tuple[int, float], Renewer] = {}


@contextmanager
def lease(redis: Redis, name: str, *, seconds: float = 30.0, retry_after: float = 1.0) -> Iterator[Lock]:
    """Hold the lease `name` for the block; raises Postpone while another process holds it.

    A holder that was stopped for longer than `seconds` has lost the lease: `owned()` of the lock is then false. Where
    two writers would do harm, check it at the end.
    """
    lock = Lock(redis, _key(name), timeout=seconds, blocking=False, thread_local=False)
    token = uuid.uuid4().hex
    if not lock.acquire(token=token):
        # redis-py repeats a call whose reply was lost, and then finds the lease held by its own token.
        if redis.get(lock.name) not in (token, token.encode()):
            raise Postpone(retry_after, f"{name} is held by another worker", code="lease-held")
        lock.local.token = token.encode()
    renewer = _renewers.setdefault((os.getpid(), seconds), Renewer(seconds=seconds))
    try:
        renewer.add(token, lock.reacquire)
        yield lock
    finally:
        renewer.remove(token)
        # Lost meanwhile: the present holder keeps it. The block may have released it.
        with suppress(LockError):
            lock.release()


def is_held(redis: Redis, name: str) -> bool:
    """Return whether a process holds the lease `name`, or held it when it died some seconds ago."""
    return bool(redis.exists(_key(name)))


def _key(name: str) -> str:
    return f"{PREFIX}lease:{name}"
