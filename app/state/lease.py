"""Leases: at most one holder at a time, freed by themselves soon after their holder died."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from redis import Redis
from redis.exceptions import RedisError

from app.broker.errors import Postpone
from app.state.client import PREFIX

#: Delete only what is still ours: the lease may have run out and be another's by now.
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
_RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
_IS_OURS = "return redis.call('GET', KEYS[1]) == ARGV[1]"


@dataclass(frozen=True, slots=True)
class Lease:
    """One lease that was got."""

    redis: Redis = field(repr=False)
    key: str
    token: str

    def is_held(self) -> bool:
        """Ask whether it still is ours: a holder that was stopped for longer than its lease has lost it."""
        return bool(self.redis.eval(_IS_OURS, 1, self.key, self.token))


class Renewer:
    """Keeps leases alive while their holder lives: one thread renews all that are held, three times a lease."""

    def __init__(self, redis: Redis, *, seconds: float) -> None:
        self._redis = redis
        self._seconds = seconds
        self._held: dict[str, str | bytes] = {}
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, key: str, token: str | bytes) -> None:
        """Renew a lease from now on; the thread starts with the first one."""
        self._held[key] = token
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def let_go(self, key: str) -> None:
        """Renew a lease no longer."""
        self._held.pop(key, None)

    def close(self) -> None:
        """End the thread."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(self._seconds / 3):
            for key, token in list(self._held.items()):
                try:
                    self._redis.eval(_RENEW, 1, key, token, str(int(self._seconds * 1_000)))
                except RedisError:
                    # The next round tries again; a lease that is lost meanwhile is another's, and safe with it.
                    break


@contextmanager
def lease(redis: Redis, name: str, *, seconds: float = 30.0, retry_after: float = 1.0) -> Iterator[Lease]:
    """Hold the lease `name` for the block; raises Postpone where another holds it."""
    held = Lease(redis, f"{PREFIX}lease:{name}", uuid.uuid4().hex)
    if not redis.set(held.key, held.token, nx=True, px=int(seconds * 1_000)):
        raise Postpone(retry_after, f"{name} is held by another worker")
    with closing(Renewer(redis, seconds=seconds)) as renewer:
        renewer.hold(held.key, held.token)
        try:
            yield held
        finally:
            renewer.let_go(held.key)
            redis.eval(_RELEASE, 1, held.key, held.token)
