"""When a cover art job may run: the order of messages, by Redis and the archive, and the locks of items."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from redis import Redis
from redis.exceptions import LockNotOwnedError
from redis.lock import Lock

from app.broker.errors import Postpone
from app.broker.headers import whole_number
from app.broker.policies.fixed_ttl import RETRIES
from app.coverart.archive import ArchiveItem
from app.coverart.jobs import Job, body_of, kind_of
from app.coverart.project import Entity, Image, Merge, Project
from app.redis_state.client import PREFIX
from app.redis_state.lease import lease

#: The header of a message that has waited out its coalescing window: its number among arrivals and beginnings of runs.
ARRIVED = "perennial-arrived"

#: Milliseconds beyond the window for which Redis has the beginning of a run. An equal message that comes back later
#: from its delay queue runs once more.
_HELD_MS = 600_000

#: Seconds between two checks whether an image was moved: half the age of the merge, within these limits.
_SHORTEST, _LONGEST = 1.0, 600.0

# Under the locks of the job. Of a job that is covered nothing is noted: it reads nothing.
_BEGIN = """
local sequence = table.remove(KEYS, 1)
local is_covered = 0
for _, key in ipairs(KEYS) do
    local began, by = unpack(redis.call('HMGET', key, 'number', 'by'))
    if began and by ~= ARGV[1] and tonumber(began) > tonumber(ARGV[2]) then is_covered = 1 end
end
local number = is_covered == 0 and redis.call('INCR', sequence)
for _, key in ipairs(KEYS) do
    if is_covered == 0 then
        redis.call('HSET', key, 'number', number, 'by', ARGV[1])
        redis.call('PEXPIRE', key, ARGV[3])
    elseif redis.call('HGET', key, 'by') == ARGV[1] then
        redis.call('DEL', key)
    end
end
return is_covered
"""

#: Notes that a job is about to read what it writes, for itself and for the equal ones that are given. Returns false
#: where another job has read it since the message arrived: then the job needs no run.
Claim = Callable[..., bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOrder:
    """The order of messages of an archive, which name no others. Events have that of their table.

    Equal messages that arrive within `window` seconds become one job; 0 turns that off. Every message waits that long
    in a delay queue. When it is back, it is dropped if an equal job of another message has begun to read since it
    arrived. A change that a job may not have read is never dropped, and a stopped job runs again by its own message.
    One counter in Redis numbers arrivals and beginnings, so no clock matters. Without its data more jobs run, never
    fewer.

    The messages of a merge are in three queues. But the database has the merge, and `read_item` returns an item of the
    archive by its name. While an image of the database's entity is still in the merged gid's item, a `move` waits: in a
    queue, in retry, or running. After `patience` seconds it must be dead.
    """

    redis: Redis = field(repr=False)
    project: Project
    read_item: Callable[[str], ArchiveItem | None]
    window: float
    patience: float

    def admit(self, message_id: str, headers: Mapping[str, Any]) -> Claim:
        """Return the function that notes that the job of a message begins; raises Postpone for a new message.

        A retry has not arrived in a window, and runs: hours have passed.
        """
        if not self.window or RETRIES in headers:
            return always_claimed
        arrived = whole_number(headers, ARRIVED, default=0)
        if not arrived:
            number = {ARRIVED: self.redis.incr(self._sequence)}
            raise Postpone(
                self.window, "the coalescing window is open", code="coalescing", exactly=True, headers=number
            )

        def claim(*jobs: Job) -> bool:
            held_ms = round(self.window * 1_000) + _HELD_MS
            keys = [self._sequence]
            for job in jobs:
                digest = hashlib.blake2b(body_of(job), digest_size=16).hexdigest()
                keys.append(f"{PREFIX}art:begun:{self.project.prefix}:{kind_of(job)}:{digest}")
            return not self.redis.eval(_BEGIN, len(keys), *keys, message_id, arrived, held_ms)

        return claim

    def require_moved(self, entity: Entity, merges: Iterable[Merge], *, or_copied: bool = False) -> None:
        """Raise Postpone while an image of `entity` is in the item of one of its `merges`.

        With `or_copied`, an image is not waited for that the entity's own item has, too. Reads no item where there is
        no recent merge. Raises the errors of `read_item`.
        """
        recent = [merge for merge in merges if merge.age < self.patience] if entity.images else []
        done = self._images_in(entity.gid, entity) if recent and or_copied else set()
        for merge in recent if len(done) < len(entity.images) else ():
            if left := self._images_in(merge.gid, entity) - done:
                image = min(image.id for image in left)
                why = f"image {image} was not moved yet from {merge.gid} to {entity.gid}"
                raise Postpone(min(max(merge.age / 2, _SHORTEST), _LONGEST), why, code="image-not-moved")

    def _images_in(self, gid: str, entity: Entity) -> set[Image]:
        """Return those images of an entity that are in the item of a gid."""
        item = self.read_item(self.project.bucket(gid))
        files = item.files if item is not None else ()
        return {image for image in entity.images if self.project.image_file(gid, image.id, image.suffix) in files}

    @property
    def _sequence(self) -> str:
        return f"{PREFIX}art:sequence:{self.project.prefix}"


def always_claimed(*_: Job) -> bool:
    """Return that a job needs its run, whatever others did."""
    return True


@dataclass(frozen=True, slots=True)
class ItemLocks:
    """Lets one job at a time work on an item, so that an older listing never overwrites a newer one.

    The locks are leases in Redis: a lock in the database would keep one of its few connections for as long as the
    archive takes. A lease cannot stop a holder that has lost it. So a job checks at its end that it held its leases
    throughout. If not, it is postponed, so the last writer has always read the current state.

    A killed holder's lock expires after `seconds`; a job that finds a lock held is postponed for `retry_after` seconds.
    """

    redis: Redis = field(repr=False)
    project: Project
    seconds: float = 10.0
    retry_after: float = 1.0

    @contextmanager
    def hold(self, *gids: str) -> Iterator[HeldItems]:
        """Hold the locks of these gids for the block, which also reads what it writes.

        Raises Postpone where another job holds one of them, and after the block where one was lost meanwhile.
        """
        with ExitStack() as stack:
            held = HeldItems(self, stack)
            held.add(*gids)
            yield held
            held.require(_released)


class HeldItems:
    """The items that a job holds, by their gids in `locks`."""

    def __init__(self, owner: ItemLocks, stack: ExitStack) -> None:
        self.locks: dict[str, Lock] = {}
        self._owner = owner
        self._stack = stack

    def add(self, *gids: str) -> None:
        """Hold further items, too; raises Postpone where another job holds one of them."""
        owner = self._owner
        # Sorted: of two jobs that need the same gids, one gets the first lock and then the others.
        for gid in sorted(set(gids)):
            name = f"{owner.project.prefix}:{gid}"
            held = lease(owner.redis, name, seconds=owner.seconds, retry_after=owner.retry_after)
            self.locks[gid] = self._stack.enter_context(held)

    def require(self, is_held: Callable[[Lock], bool] = Lock.owned) -> None:
        """Raise Postpone if a lock was lost. A job calls it before what cannot be repeated."""
        for lock in self.locks.values():
            if not is_held(lock):
                why = f"lost {lock.name} while the job ran; another job may have run"
                raise Postpone(self._owner.retry_after, why, code="lease-lost")


def _released(lock: Lock) -> bool:
    """Release a lock; return whether it was held until now."""
    try:
        lock.release()
    except LockNotOwnedError:
        return False
    return True
