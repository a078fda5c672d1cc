"""One job at a time for each item of an archive, so that an older listing never overwrites a newer one.

The locks are leases in Redis, not advisory locks of the database that is read. A job is a few requests to an archive,
which may take half a minute each. An advisory lock would keep a transaction open for all that time (one of a session
does not work behind pgbouncer with transaction pooling), and so one of the few connections of a database that is
somebody else's; and a deletion, which reads nothing, would need that database. Neither kind can keep a holder that has
lost its lock from writing. So a holder asks in the end whether it held its locks all along, and if not is run again:
who writes last has read last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from redis import Redis
from redis.lock import Lock

from app.broker.errors import Postpone
from app.coverart.project import Project
from app.coverart.values import Entity
from app.state.lease import lease


@dataclass(frozen=True, slots=True)
class Locks:
    """The locks of one archive. Nobody waits for one: who does not get it is postponed.

    `seconds` is how long a lock stays when its holder was killed; a holder that lives renews it. `retry_after` is in
    seconds.
    """

    redis: Redis = field(repr=False)
    project: Project
    seconds: float = 30.0
    retry_after: float = 5.0

    @contextmanager
    def hold(self, *gids: str) -> Iterator[None]:
        """Hold the locks of these gids, all or none, for the block. Read what the block writes within it.

        Raises:
            Postpone: another one holds one of them; or, after the block, one was lost while it ran.
        """
        with ExitStack() as stack:
            held = self._take(stack, gids)
            yield
            self._check(held)

    @contextmanager
    def hold_entity(self, gid: str, read: Callable[[str], Entity | None]) -> Iterator[Entity | None]:
        """Hold the lock of what a gid leads to, and of the gid, for the block; yield what was read under both.

        `read` is asked again whenever it says that the gid leads to one that is not locked yet.

        Raises:
            Postpone: as `hold`.
        """
        with ExitStack() as stack:
            held = self._take(stack, [gid])
            locked, entity = {gid}, read(gid)
            while entity is not None and entity.gid not in locked:
                held += self._take(stack, [entity.gid])
                locked.add(entity.gid)
                entity = read(gid)
            yield entity
            self._check(held)

    def _take(self, stack: ExitStack, gids: Iterable[str]) -> list[Lock]:
        # In one order for everybody: of two that want the same gids, one gets the first and then the others.
        names = [f"{self.project.prefix}:{gid}" for gid in sorted(set(gids))]
        return [
            stack.enter_context(lease(self.redis, name, seconds=self.seconds, retry_after=self.retry_after))
            for name in names
        ]

    def _check(self, held: Iterable[Lock]) -> None:
        for each in held:
            if not each.owned():
                raise Postpone(
                    self.retry_after, f"{each.name} was lost while the job ran: somebody may have run another"
                )
