"""The queues that the broker refused to a worker: each is tried again after a backoff, all others are consumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from amqp.exceptions import ChannelError
from celery.utils.log import get_logger
from kombu import Queue

from ..connection import backoff
from ..declaring import RefusedDeclaration, declare_queues

logger = get_logger(__name__)

#: Seconds between two attempts to declare a queue: at first, and at most.
_FIRST_BACKOFF, _LONGEST_BACKOFF = 1.0, 30.0


class RefusedQueues:
    """Tries refused queues again by `call_after` of the worker's event loop, and calls `available` with each success.

    The broker refuses to declare a queue, or to let the worker consume from one that another program consumes alone.
    The second refusal closes the channel of all queues, so each further attempt has a channel of its own.
    """

    def __init__(
        self, call_after: Callable[[float, Callable[[], None]], Any], available: Callable[[Queue], None]
    ) -> None:
        self._call_after = call_after
        self._available = available
        self._connection: Any = None
        #: The names of the queues; a consumer leaves them out.
        self.names: set[str] = set()
        #: Those that can be declared, and not consumed from.
        self._not_consumed: dict[str, RefusedDeclaration] = {}

    def note(self, connection: Any, refusals: Iterable[RefusedDeclaration]) -> None:
        """Forget the queues that were refused to a former connection, and note those of a new one."""
        self._connection = connection
        self.names.clear()
        for refusal in {**self._not_consumed, **{each.queue.name: each for each in refusals}}.values():
            self._wait(refusal, failures=1)

    def note_not_consumed(self, queue: Queue, error: ChannelError) -> None:
        """Note a queue that the worker may not consume from, for the next connection: this one's channel is closed."""
        self._not_consumed[queue.name] = RefusedDeclaration(queue, error)

    def _wait(self, refusal: RefusedDeclaration, failures: int) -> None:
        pause = backoff(failures, first=_FIRST_BACKOFF, longest=_LONGEST_BACKOFF)
        name = refusal.queue.name
        self.names.add(name)
        logger.warning("Queue %s refused, all others are served, next attempt in %.1f s: %s", name, pause, refusal)
        connection = self._connection

        def try_again() -> None:
            # A new connection declares everything itself.
            if connection is not self._connection:
                return
            for again in declare_queues(connection, [refusal.queue]) or self._consume_briefly(name):
                self._wait(again, failures + 1)
                return
            self.names.discard(name)
            logger.warning("Queue %s declared: it was refused before", name)
            self._available(refusal.queue)

        self._call_after(pause, try_again)

    def _consume_briefly(self, name: str) -> list[RefusedDeclaration]:
        """Consume from a queue that refused it before, for a moment; return the refusal if there is one again."""
        refusal = self._not_consumed.pop(name, None)
        if refusal is None:
            return []
        channel = self._connection.channel()
        # What it receives goes back to the queue as redelivered.
        channel.basic_qos(0, 1, False)
        try:
            channel.basic_cancel(channel.basic_consume(name, callback=lambda _message: None))
        except ChannelError as error:
            self.note_not_consumed(refusal.queue, error)
            return [self._not_consumed[name]]
        finally:
            channel.close()
        return []
