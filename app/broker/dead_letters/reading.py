"""Reading a dead set without changing it: a lease, and an exclusive consumer whose end gives all back."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from amqp.exceptions import AccessRefused, NotFound, ResourceLocked

from ..connection import connected
from ..delivery import Delivery
from ..errors import DeadSetBusy
from .letters import DeadLetter, LetterIds, letter_of

#: Seconds to wait for somebody else to be done with a dead set; between two tries; for a message that must come.
PATIENCE, _PAUSE, _SILENCE = 5.0, 0.1, 1.0

#: A prefetch is a number of 16 bits; 0 would be no limit.
_MOST_PREFETCHED = 65_535


@contextmanager
def leased(broker: str, queue: str) -> Iterator[Lease]:
    """Yield the right to read a dead set, which nobody else of ours has meanwhile.

    Raises DeadSetBusy when somebody has it, and BrokerUnreachable.
    """
    with connected(broker) as connection:
        lease = Lease(broker, queue)
        lease.acquire(connection)
        yield lease
        connection.connection.close()


class Lease:
    """The right to read a dead set: an exclusive queue beside it, which the broker takes away with its connection.

    The exclusive consumer alone would not do. Between counting and consuming somebody else may begin and end, and what
    they held would not be counted.
    """

    def __init__(self, broker: str, queue: str) -> None:
        self._broker = broker
        self._queue = queue

    def acquire(self, connection: Any) -> None:
        """Take it on a connection, waiting at most PATIENCE seconds; raises DeadSetBusy."""
        deadline = time.monotonic() + PATIENCE
        while not (_may(connection.channel(), self._lock) and self._nobody_reads()):
            if time.monotonic() > deadline:
                raise DeadSetBusy(f"somebody else works on the dead set {self._queue}; try again when they are done")
            time.sleep(_PAUSE)

    @contextmanager
    def reading(self, gone: Counter[str] | None = None, *, first: int | None = None) -> Iterator[Reading]:
        """Yield the messages there now. All that are not removed go back, in their order, when the block ends.

        `gone` counts, by the base of their id, messages that left since they were named. With `first`, the broker
        gives no more than so many: giving back a hundred thousand keeps it busy for seconds.
        """
        with connected(self._broker) as connection:
            reading = Reading(connection, self._queue, LetterIds(gone))
            reading.begin(first)
            yield reading
            # What was acknowledged has left, and the rest is back, when the broker has answered.
            connection.connection.close()

    def depth(self) -> int:
        """Return how many messages there are."""
        with connected(self._broker) as connection:
            try:
                return int(connection.channel().queue_declare(self._queue, passive=True).message_count)
            except NotFound:
                return 0

    def _lock(self, channel: Any) -> None:
        channel.queue_declare(f"{self._queue}.lease", exclusive=True)

    def _nobody_reads(self) -> bool:
        """Return whether no consumer is there; that of a process that was just killed gives its messages back first."""
        with connected(self._broker) as connection:
            nobody = _may(connection.channel(), self._begin_to_read)
            connection.connection.close()
            return nobody

    def _begin_to_read(self, channel: Any) -> None:
        channel.basic_qos(0, 1, False)
        with suppress(NotFound):
            channel.basic_consume(self._queue, callback=_ignore, exclusive=True)


class Reading:
    """The messages of a dead set, each unacknowledged: as many as there were at the start, so that none goes round."""

    def __init__(self, connection: Any, queue: str, names: LetterIds) -> None:
        self._connection = connection
        self._channel = connection.channel()
        self._queue = queue
        self._names = names
        self._arrived: deque[Any] = deque()
        self.depth = 0

    def begin(self, first: int | None) -> None:
        """Count, then consume; a queue that does not exist has no messages."""
        try:
            self.depth = self._ready()
        except NotFound:
            return
        if first is not None and first <= _MOST_PREFETCHED:
            self._channel.basic_qos(0, first, False)
            self.depth = min(self.depth, first)
        self._channel.basic_consume(self._queue, callback=self._arrived.append, exclusive=True)

    def __iter__(self) -> Iterator[tuple[DeadLetter, int]]:
        """Yield them with their tags, oldest first. One at a time is in memory."""
        for _ in range(self.depth):
            delivery = self._next()
            if delivery is None:
                return
            yield letter_of(delivery[0], self._queue, self._names), delivery[1]

    def remove(self, tag: int) -> None:
        """Take a message from the dead set: it is safe elsewhere."""
        self._channel.basic_ack(tag)

    def remove_arrivals(self, which: Callable[[Delivery], bool], count: int) -> None:
        """Remove messages that came after the start; raises nothing where they do not come."""
        while count and (delivery := self._next()) is not None:
            if which(delivery[0]):
                self.remove(delivery[1])
                count -= 1

    def _next(self) -> tuple[Delivery, int] | None:
        """Return the next message with its tag, or None where no more come."""
        while not self._arrived:
            try:
                self._connection.drain_events(timeout=_SILENCE)
            except TimeoutError:
                # The count was of messages that somebody else held, or that expired.
                if not self._ready() and not self._ready() and not self._arrived:
                    return None
        raw = self._arrived.popleft()
        message = self._channel.message_to_python(raw)
        return Delivery.of(message, self._queue), message.delivery_tag

    def _ready(self) -> int:
        return int(self._channel.queue_declare(self._queue, passive=True).message_count)


def _may(channel: Any, act: Callable[[Any], None]) -> bool:
    """Return whether the broker let us: False where somebody else has what is asked for exclusively."""
    try:
        act(channel)
    except ResourceLocked:
        return False
    except AccessRefused as error:
        if "in exclusive use" in str(error):
            return False
        raise
    return True


def _ignore(message: Any) -> None:
    """Leave a message unacknowledged: its connection is closed at once."""
