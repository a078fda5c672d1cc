"""Equal jobs that come within a few seconds become one: they wait in the broker, and only a mark is in Redis."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from redis import Redis

from app.coverart import messages
from app.coverart.project import Project
from app.coverart.values import Job
from app.errors import Postpone
from app.state.client import PREFIX

#: The header of a message that has been through its window.
SETTLED = "perennial-settled"


@dataclass(frozen=True, slots=True)
class Window:
    """The window of one archive, so many seconds long; 0 is none.

    A mark says that an equal message stands in a delay queue and has not begun to run. It is set only when the broker
    has confirmed that message, ends no later than the message comes back, and is cleared before it runs: a message
    that comes after that finds none, so a change that a run may not have read is never dropped.
    """

    redis: Redis = field(repr=False)
    project: Project
    seconds: float

    def settle(self, job: Job) -> bool:
        """Return True for a message that an equal one stands for.

        Raises:
            Postpone: none does; this one is to wait out its window.
        """
        if self.redis.exists(self._key(job)):
            return True
        raise Postpone(self.seconds, "equal messages are gathered", exactly=True, mark=SETTLED)

    def opened(self, job: Job) -> None:
        """Note that a message waits out its window: called when the broker has it."""
        self.redis.set(self._key(job), 1, px=max(1, round(self.seconds * 1_000)))

    def close(self, job: Job) -> None:
        """Forget the mark: the message that it tells of is about to run."""
        self.redis.delete(self._key(job))

    def _key(self, job: Job) -> str:
        digest = hashlib.blake2b(messages.body(job), digest_size=16).hexdigest()
        return f"{PREFIX}art:window:{self.project.prefix}:{messages.kind_of(job)}:{digest}"
