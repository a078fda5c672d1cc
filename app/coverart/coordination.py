"""How workers coordinate cover art jobs through Redis: coalescing window, circuit breaker, locks of items."""

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
from app.state.circuit_breaker import CircuitBreaker
from app.state.client import PREFIX
from app.state.lease import lease

#: The header of a message that has waited out its coalescing window.
COALESCED = "perennial-settled"

#: Value of a window's key: a message waits in its delay queue.
_WAITING = "waits"
#: Replaces the reservation of one message only, and keeps the key's expiration. A worker that was stopped for longer
#: than the window would otherwise announce a message that has run.
_MARK_WAITING = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL') end"

#: Seconds that the circuit breaker stays open at most, and seconds after which it forgets failures.
LONGEST_PAUSE, FAILURE_MEMORY = 600.0, 3_600


@dataclass(frozen=True, slots=True)
class CoalescingWindow:
    """Makes one job of equal messages of an archive that arrive within `seconds`; 0 turns it off.

    The first message waits in a delay queue, and a key in Redis marks that. The key is set when the broker has
    confirmed the message, expires before the message returns, and is deleted before its job runs. A later message
    finds no key, so a change that the job may not have read is never dropped.
    """

    redis: Redis = field(repr=False)
    project: Project
    seconds: float

    def decide(self, job: Job, message_id: str) -> Literal["drop"] | Postpone:
        """Return what to do with a new message: drop it, since an equal one waits, or postpone it.

        It is postponed for the window. While an equal message is being published to the delay queue, which may still
        fail, it is postponed for a part of the window.
        """
        key, reservation = self._key(job), f"asked by {message_id}"
        if not self.redis.set(key, reservation, nx=True, px=max(1, round(self.seconds * 1_000))):
            state = self.redis.get(key)
            if state == _WAITING:
                return "drop"
            if state != reservation:
                return Postpone(self.seconds / 4, "an equal message is being moved to its delay queue")
        return Postpone(self.seconds, "the coalescing window is open", exactly=True, mark=COALESCED)

    def mark_waiting(self, job: Job, message_id: str) -> None:
        """Note that the broker has confirmed the message in the delay queue."""
        self.redis.eval(_MARK_WAITING, 1, self._key(job), f"asked by {message_id}", _WAITING)

    def clear(self, job: Job) -> None:
        """Delete the key, before the job runs."""
        self.redis.delete(self._key(job))

    def _key(self, job: Job) -> str:
        digest = hashlib.blake2b(body_of(job), digest_size=16).hexdigest()
        return f"{PREFIX}art:window:{self.project.prefix}:{kind_of(job)}:{digest}"


def archive_breaker(redis: Redis, first_pause: float) -> CircuitBreaker:
    """Return the circuit breaker of the archive, open for `first_pause` seconds after the first failure."""
    return CircuitBreaker(redis, "art", first_pause, LONGEST_PAUSE, FAILURE_MEMORY)


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
    def hold_entity(self, gid: str, read: Callable[[str], Entity | None]) -> Iterator[Entity | None]:
        """Hold the locks of a gid and of the gid that it was merged into; yield the entity that was read under both.

        `read` runs again when it returns an entity whose gid is not locked yet. Raises Postpone as `hold` does.
        """
        with ExitStack() as stack:
            held = self._acquire(stack, [gid])
            locked, entity = {gid}, read(gid)
            while entity is not None and entity.gid not in locked:
                held += self._acquire(stack, [entity.gid])
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
