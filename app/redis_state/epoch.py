"""The epoch of Redis: which server process holds the keys. Another one may have lost them, or their last writes."""

from __future__ import annotations

from typing import Literal

from redis import Redis

from app.redis_state.client import PREFIX

#: The run id of the server process that holds the keys.
EPOCH = f"{PREFIX}epoch"
#: The epoch for which everything was compared with the store.
_COMPARED = f"{PREFIX}epoch:compared"


class Epoch:
    """Notices that Redis was started, replaced or emptied: by another run id, or without the key of the epoch."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def change(self) -> Literal["", "emptied", "restarted"]:
        """Return how a new epoch has begun; until `note` is called, later calls return `restarted`.

        A Redis that was empty has lost no part of what is written since. One that was started again, or replaced by its
        replica, may lack its last writes. Workers see the new epoch before anything is published again: they forget
        what the former one knew.
        """
        run_id = str(self._redis.info("server")["run_id"])
        epoch, compared = self._redis.mget(EPOCH, _COMPARED)
        if epoch != run_id:
            self._redis.set(EPOCH, run_id)
        if compared == run_id:
            return ""
        return "restarted" if epoch else "emptied"

    def note(self) -> None:
        """Note that what the present epoch may lack is published again."""
        self._redis.set(_COMPARED, self._redis.get(EPOCH) or "")
