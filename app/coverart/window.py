"""Equal jobs that come within a few seconds become one: they wait in the broker, and only a mark is in Redis."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from redis import Redis

from app.broker.errors import Postpone
from app.coverart import messages
from app.coverart.project import Project
from app.coverart.values import Job
from app.state.client import PREFIX

#: The header of a message that has been through its window.
SETTLED = "perennial-settled"

_WAITS = "waits"
#: Only who asked for the window opens it, and its end stays as it was: a parent that was stopped for longer than the
#: window would otherwise tell of a message that has run.
_OPEN = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL') end"


@dataclass(frozen=True, slots=True)
class Window:
    """The window of one archive, so many seconds long; 0 is none.

    A mark says that an equal message stands in a delay queue and has not begun to run. It says so only when the broker
    has confirmed that message, ends before the message comes back, and is cleared before it runs: a message that comes
    after that finds none, so a change that a run may not have read is never dropped.
    """

    redis: Redis = field(repr=False)
    project: Project
    seconds: float

    def settle(self, job: Job, ident: str) -> bool:
        """Return True for a message that an equal one stands for; `ident` is the message's own, to ask by.

        Raises:
            Postpone: none does. This one is to wait out its window; or, if an equal one is just on its way there, to
                come again soon, when that one surely waits.
        """
        key, asked = self._key(job), f"asked by {ident}"
        if not self.redis.set(key, asked, nx=True, px=max(1, round(self.seconds * 1_000))):
            state = self.redis.get(key)
            if state == _WAITS:
                return True
            if state != asked:
                raise Postpone(self.seconds / 4, "an equal message is on its way into its window")
        raise Postpone(self.seconds, "equal messages are gathered", exactly=True, mark=SETTLED)

    def opened(self, job: Job, ident: str) -> None:
        """Note that a message waits out its window: called when the broker has it."""
        self.redis.eval(_OPEN, 1, self._key(job), f"asked by {ident}", _WAITS)

    def close(self, job: Job) -> None:
        """Forget the mark: the message that it tells of is about to run."""
        self.redis.delete(self._key(job))

    def _key(self, job: Job) -> str:
        digest = hashlib.blake2b(messages.body(job), digest_size=16).hexdigest()
        return f"{PREFIX}art:window:{self.project.prefix}:{messages.kind_of(job)}:{digest}"
