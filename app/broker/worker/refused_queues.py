"""The queues that the broker refused to a worker: each is declared again after a backoff, all others are consumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from celery.utils.log import get_logger
from kombu import Queue

from ..connection import backoff
from ..declaring import RefusedDeclaration, declare_queues

logger = get_logger(__name__)

#: Seconds between two attempts to declare a queue: at first, and at most.
_FIRST_BACKOFF, _LONGEST_BACKOFF = 1.0, 30.0


class RefusedQueues:
    """Declares refused queues again by a timer of the worker's event loop, and calls `declared` with each success."""

    def __init__(self, timer: Any, declared: Callable[[Queue], None]) -> None:
        self._timer = timer
        self._declared = declared
        self._connection: Any = None
        #: The names of the queues; a consumer leaves them out.
        self.names: set[str] = set()

    def note(self, connection: Any, refusals: Iterable[RefusedDeclaration]) -> None:
        """Forget the queues that were refused to a former connection, and note those of a new one."""
        self._connection = connection
        self.names.clear()
        for refusal in refusals:
            self._wait(refusal, failures=1)

    def _wait(self, refusal: RefusedDeclaration, failures: int) -> None:
        pause = backoff(failures, first=_FIRST_BACKOFF, longest=_LONGEST_BACKOFF)
        name = refusal.queue.name
        self.names.add(name)
        logger.warning("Queue %s refused, all others are served, next attempt in %.1f s: %s", name, pause, refusal)
        connection = self._connection

        def declare() -> None:
            # A new connection declares everything itself.
            if connection is not self._connection:
                return
            for again in declare_queues(connection, [refusal.queue]):
                self._wait(again, failures + 1)
                return
            self.names.discard(name)
            logger.warning("Queue %s declared: it was refused before", name)
            self._declared(refusal.queue)

        self._timer.call_after(pause, declare)
