"""Count the letters of a dead set from outside, while other programs may work on it."""

from __future__ import annotations

from typing import Any

from ..declaring import existing_queue
from ..errors import DeadSetBusy, QueueUnavailable
from .shards import existing_shards, index_queue, shard_name


def count_letters(connection: Any, set_name: str) -> int | None:
    """Return the number of letters of a dead set with its shards; this needs neither the lease nor a permission.

    None means that the number is unknown: the set is missing, its node is down, or a program holds or moves letters.
    """
    try:
        before = _count_free(connection, set_name)
        is_sharded = _count_free(connection, index_queue(set_name).name) is not None
        shards = existing_shards(lambda number: _count_free(connection, shard_name(set_name, number)))
        total = sum(letters for _, letters in shards) if is_sharded else 0
        after = _count_free(connection, set_name)
    except (DeadSetBusy, QueueUnavailable):
        return None
    # Fewer than before: they were moved to a shard that was counted already.
    return None if before is None or after is None or after < before else total + after


def _count_free(connection: Any, queue: str) -> int | None:
    """Return the number of messages in a queue, None where it does not exist.

    Raises DeadSetBusy where a program consumes it, and QueueUnavailable.
    """
    with connection.channel() as channel:
        found = existing_queue(channel, queue)
    if found and found.consumer_count:
        raise DeadSetBusy(f"a program consumes {queue}")
    return None if found is None else int(found.message_count)
