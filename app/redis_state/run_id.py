"""The run id of Redis: which server process holds the keys. Another one may have lost them, or their last writes."""

from __future__ import annotations

from typing import Literal

from redis import Redis

from app.redis_state.client import PREFIX

#: The run id of the server process that holds the keys.
RUN_ID = f"{PREFIX}run_id"
#: The run id for which everything was compared with the store; before, why it has to be.
_COMPARED = f"{PREFIX}run_id:compared"

RunIdChange = Literal["", "emptied", "restarted"]


class RedisRunId:
    """Notices that Redis was started, replaced or emptied: its run id is another one, or the key is missing."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def change(self) -> RunIdChange:
        """Return why the run id is new, if it is; until `note` is called, later calls return the same.

        A Redis that was empty has lost no part of what is written since. One that was started again, or replaced by its
        replica, may lack its last writes. Workers see the new run id before anything is published again: they forget
        what they had read under the former one.
        """
        run_id = str(self._redis.info("server")["run_id"])
        stored, compared = self._redis.mget(RUN_ID, _COMPARED)
        if stored != run_id:
            change: RunIdChange = "restarted" if stored else "emptied"
            # The reason, too: another tick at the same time must not take an empty Redis for one that lost writes.
            self._redis.mset({RUN_ID: run_id, _COMPARED: change})
            return change
        if compared == run_id:
            return ""
        return "emptied" if compared == "emptied" else "restarted"

    def note(self) -> None:
        """Note that what may be missing since the present run id is published again."""
        self._redis.set(_COMPARED, self._redis.get(RUN_ID) or "")
