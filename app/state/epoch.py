"""The epoch of Redis: a key that is missing only after a loss of data, or on the first start."""

from __future__ import annotations

import uuid

from redis import Redis

from app.state.client import PREFIX

_EPOCH = f"{PREFIX}epoch"
_SWEPT = f"{PREFIX}swept:"
#: Seconds between two sweeps of one domain.
_SWEEP_EVERY = 60


class Epoch:
    """Notices that Redis lost its keys."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def was_lost(self) -> bool:
        """Return whether Redis has no epoch: it lost its keys, or is new."""
        return not self._redis.exists(_EPOCH)

    def note(self) -> None:
        """Begin a new epoch, unless another process has."""
        self._redis.set(_EPOCH, uuid.uuid4().hex, nx=True)

    def may_sweep(self, domain: str) -> bool:
        """Return whether no sweep of the domain began within the last minute, and note that one begins."""
        return bool(self._redis.set(f"{_SWEPT}{domain}", 1, nx=True, ex=_SWEEP_EVERY))
