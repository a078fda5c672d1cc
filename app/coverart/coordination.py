"""How workers coordinate cover art jobs through Redis: coalescing window and locks of items."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Literal

from redis import Redis
from redis.lock import Lock

from app.broker.errors import Postpone
from app.coverart.jobs import Job, body_of, kind_of
from app.coverart.project import Entity, Project
from app.redis_state.client import PREFIX
from app.redis_state.lease import lease

#: The header of a message that has waited out its coalescing window.
COALESCED = "perennial-settled"

#: Value of a mark: a message waits in its delay queue, or is back and has not run yet.
_WAITING = "waits"
#: Begins the value of a merged gid's key: the key of its target follows.
_ALIAS = "as "
#: Only the message that reserved may replace it. A worker that was stopped for longer than the window would otherwise
#: announce a message that has run.
_MARK_WAITING = """
local key = KEYS[1]
local value = redis.call('GET', key)
if value and string.sub(value, 1, #ARGV[3]) == ARGV[3] then
    key = string.sub(value, #ARGV[3] + 1)
    value = redis.call('GET', key)
end
if value == ARGV[1] then redis.call('SET', key, ARGV[2], 'PX', ARGV[4]) end
"""

#: Seconds for which a mark outlives the window. It is deleted when its message runs. If the message is purged instead,
#: equal messages are dropped for this long. If the message comes later, one equal message more runs.
HOLD = 600.0


@dataclass(frozen=True, slots=True)
class CoalescingWindow:
    """Makes one job of equal messages of an archive that arrive within `seconds`; 0 turns it off.

    The first message waits in a delay queue, and a mark in Redis says so. The mark is set when the broker has confirmed
    the message, and deleted when its job is about to run. Equal messages are dropped while it exists. A message that
    arrives during the run finds no mark, so a change that the job may not have read is never dropped.
    """

    redis: Redis = field(repr=False)
    project: Project
    seconds: float

    def is_waiting(self, job: Job) -> bool:
        """Return whether a message with this job waits, or with the job of the gid that it was merged into."""
        value = self.redis.get(self._key(job))
        if value is not None and str(value).startswith(_ALIAS):
            value = self.redis.get(str(value).removeprefix(_ALIAS))
        return value == _WAITING

    def decide(self, job: Job, message_id: str, *, same_as: Job | None = None) -> Literal["drop"] | Postpone:
        """Return what to do with a new message: drop it, since an equal one waits, or postpone it.

        It is postponed for the window. While an equal message is being published to the delay queue, which may still
        fail, it is postponed for a part of the window. `same_as` is the job that it shares the window of: the index of
        the gid that its own gid was merged into.
        """
        key, reservation = self._key(same_as or job), f"asked by {message_id}"
        if key != self._key(job):
            # The hook that notes the confirm knows the message's own job only.
            self.redis.set(self._key(job), f"{_ALIAS}{key}", px=_ms(self.seconds + HOLD))
        if not self.redis.set(key, reservation, nx=True, px=_ms(self.seconds)):
            state = self.redis.get(key)
            if state == _WAITING:
                return "drop"
            if state != reservation:
                return Postpone(self.seconds / 4, "an equal message is being moved to its delay queue")
        return Postpone(self.seconds, "the coalescing window is open", exactly=True, mark=COALESCED)

    def mark_waiting(self, job: Job, message_id: str) -> None:
        """Note that the broker has confirmed the message in the delay queue."""
        held_ms = _ms(self.seconds + HOLD)
        self.redis.eval(_MARK_WAITING, 1, self._key(job), f"asked by {message_id}", _WAITING, _ALIAS, held_ms)

    def clear(self, job: Job) -> None:
        """Delete the mark: its job is about to read what it writes."""
        self.redis.delete(self._key(job))

    def hold(self, job: Job) -> None:
        """Set the mark again if it is missing: its job was postponed and runs again."""
        self.redis.set(self._key(job), _WAITING, nx=True, px=_ms(self.seconds + HOLD))

    def _key(self, job: Job) -> str:
        digest = hashlib.blake2b(body_of(job), digest_size=16).hexdigest()
        return f"{PREFIX}art:window:{self.project.prefix}:{kind_of(job)}:{digest}"


@contextmanager
def own_marks(window: CoalescingWindow, *, owned: bool) -> Iterator[Callable[[Job], None]]:
    """Yield the function that deletes the mark of a job, before it reads; set it again if the job is postponed.

    A message without a mark of its own leaves all marks as they are. Equal messages may be dropped while a job is
    postponed. Until its replacement is confirmed, the broker delivers the original again, which runs.
    """
    cleared: list[Job] = []

    def clear(job: Job) -> None:
        if owned:
            window.clear(job)
            cleared.append(job)

    try:
        yield clear
    except Postpone:
        for job in cleared:
            window.hold(job)
        raise


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1_000))


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
    def hold(self, *gids: str) -> Iterator[Callable[[], None]]:
        """Hold the locks of these gids for the block, which also reads what it writes.

        Raises Postpone where another job holds one of them, and after the block where one was lost meanwhile. The
        block gets a function that raises Postpone in that case, to call before what cannot be repeated.
        """
        with ExitStack() as stack:
            held = self._acquire(stack, gids)
            yield lambda: self._check(held)
            self._check(held)

    @contextmanager
    def hold_entity(
        self, gid: str, read: Callable[[str], Entity | None], *, on_lock: Callable[[str], None] = lambda _: None
    ) -> Iterator[Entity | None]:
        """Hold the locks of a gid and of the gid that it was merged into; yield the entity that was read under both.

        `read` runs again when it returns an entity whose gid is not locked yet. `on_lock` is called with each gid that
        was locked, before the read. Raises Postpone as `hold` does.
        """
        with ExitStack() as stack:
            held = self._acquire(stack, [gid])
            on_lock(gid)
            locked, entity = {gid}, read(gid)
            while entity is not None and entity.gid not in locked:
                held += self._acquire(stack, [entity.gid])
                on_lock(entity.gid)
                locked.add(entity.gid)
                entity = read(gid)
            yield entity
            self._check(held)

    def _acquire(self, stack: ExitStack, gids: Iterable[str]) -> list[Lock]:
        # Sorted: of two jobs that need the same gids, one gets the first lock and then the others.
        names = [f"{self.project.prefix}:{gid}" for gid in sorted(set(gids))]
        return [
            stack.enter_context(lease(self.redis, name, seconds=self.seconds, retry_after=self.retry_after))
            for name in names
        ]

    def _check(self, held: Iterable[Lock]) -> None:
        for each in held:
            if not each.owned():
                raise Postpone(self.retry_after, f"lost {each.name} while the job ran; another job may have run")
