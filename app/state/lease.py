"""A lease: at most one holder at a time, freed by itself when its holder dies."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from redis import Redis

from app.errors import Postpone
from app.state.client import PREFIX

#: Delete only what is still ours: the lease may have run out and be another's by now.
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
_RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"


@contextmanager
def lease(redis: Redis, name: str, *, seconds: float = 30.0, retry_after: float = 1.0) -> Iterator[None]:
    """Hold the lease `name` for the block, renewed by a thread; raises Postpone where another holds it."""
    key, token = f"{PREFIX}lease:{name}", uuid.uuid4().hex
    if not redis.set(key, token, nx=True, px=int(seconds * 1_000)):
        raise Postpone(retry_after, f"{name} is held by another worker")
    done = threading.Event()
    renewer = threading.Thread(target=_renew, args=(redis, key, token, seconds, done), daemon=True)
    renewer.start()
    try:
        yield
    finally:
        done.set()
        renewer.join()
        redis.eval(_RELEASE, 1, key, token)


def _renew(redis: Redis, key: str, token: str, seconds: float, done: threading.Event) -> None:
    while not done.wait(seconds / 3):
        redis.eval(_RENEW, 1, key, token, str(int(seconds * 1_000)))
