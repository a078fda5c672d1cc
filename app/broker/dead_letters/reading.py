"""Read a dead set without changing it, by an exclusive consumer: closing its connection requeues all in order."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from amqp.exceptions import AccessRefused, NotFound, ResourceLocked

from ..connection import CONNECTION_ERRORS, connected
from ..declaring import node_down
from ..delivery import Delivery
from ..errors import DeadSetBusy, QueueUnavailable
from .letters import DeadLetter, LetterIds, letter_of

#: Seconds to wait until another reader of the dead set has finished.
LEASE_TIMEOUT = 5.0
#: Seconds between two attempts to get the lease.
_LEASE_INTERVAL = 0.1

#: Seconds to wait for a message that the queue's count announced.
_MESSAGE_TIMEOUT = 1.0

#: AMQP's prefetch count has 16 bits, and 0 means no limit.
_MAX_PREFETCH = 65_535


@contextmanager
def leased(broker: str, queue: str) -> Iterator[DeadSetLease]:
    """Yield a lease on a dead set. Raises DeadSetBusy while another process has it, and BrokerUnreachable."""
    with connected(broker) as connection:
        lease = DeadSetLease(broker, queue)
        lease.acquire(connection)
        yield lease
        # A connection that broke has ended the lease. What the operation did before must still be reported.
        with suppress(*CONNECTION_ERRORS):
            connection.connection.close()


class DeadSetLease:
    """The right to read a dead set: an exclusive queue, deleted with its connection by the broker.

    An exclusive consumer alone is not enough. Between counting and consuming, another process could begin and end. The
    messages that it held would not be counted.
    """

    def __init__(self, broker: str, queue: str) -> None:
        self._broker = broker
        self._queue = queue

    def acquire(self, connection: Any) -> None:
        """Declare the lease queue on a connection. Raises DeadSetBusy after LEASE_TIMEOUT seconds."""
        deadline = time.monotonic() + LEASE_TIMEOUT
        lease = f"{self._queue}.lease"
        while not (
            _granted(lambda: connection.channel().queue_declare(lease, exclusive=True)) and self._has_no_consumer()
        ):
            if time.monotonic() > deadline:
                raise DeadSetBusy(f"another process works on the dead set {self._queue}; try again when it has ended")
            time.sleep(_LEASE_INTERVAL)

    @contextmanager
    def reading(self, departed: Counter[str] | None = None, *, first: int | None = None) -> Iterator[DeadSetReader]:
        """Yield a reader of the letters that are there now. Letters that are not removed keep their order.

        `departed` counts, by base id, letters that left since the others got their ids. With `first`, the broker
        delivers at most that many: requeueing 100,000 messages keeps it busy for seconds.
        """
        with connected(self._broker) as connection:
            reader = DeadSetReader(connection, self._queue, LetterIds(departed))
            reader.start(first)
            try:
                yield reader
            except BaseException:
                # Closing without an answer would lose the acknowledgements of letters that were removed already.
                with suppress(*CONNECTION_ERRORS):
                    connection.connection.close()
                raise
            # The broker's answer means that it handled all acknowledgements and requeued the rest.
            connection.connection.close()

    def depth(self) -> int:
        """Return the number of letters."""
        with connected(self._broker) as connection:
            try:
                return int(connection.channel().queue_declare(self._queue, passive=True).message_count)
            except NotFound as error:
                _require_missing(self._queue, error)
                return 0

    def _has_no_consumer(self) -> bool:
        """Return whether an exclusive consumer is granted. A killed process may still have one for a moment."""
        with connected(self._broker) as connection:
            channel = connection.channel()
            channel.basic_qos(0, 1, False)
            granted = True
            try:
                granted = _granted(
                    lambda: channel.basic_consume(self._queue, callback=lambda _message: None, exclusive=True)
                )
            except NotFound as error:
                _require_missing(self._queue, error)
            connection.connection.close()
            return granted


class DeadSetReader:
    """The letters of a dead set, each unacknowledged. `depth` is how many there were at the start."""

    def __init__(self, connection: Any, queue: str, ids: LetterIds) -> None:
        self._connection = connection
        self._channel = connection.channel()
        self._queue = queue
        self._ids = ids
        self._arrived: deque[Any] = deque()
        self.depth = 0

    def start(self, first: int | None) -> None:
        """Count, then consume. A queue that does not exist has no letters."""
        try:
            self.depth = self._message_count()
        except NotFound as error:
            _require_missing(self._queue, error)
            return
        if first is not None and first <= _MAX_PREFETCH:
            self._channel.basic_qos(0, first, False)
            self.depth = min(self.depth, first)
        self._channel.basic_consume(self._queue, callback=self._arrived.append, exclusive=True)

    def __iter__(self) -> Iterator[tuple[DeadLetter, int]]:
        """Yield the letters with their delivery tags, oldest first, and keep none in memory."""
        for _ in range(self.depth):
            message = self._next_message()
            if message is None:
                return
            delivery, delivery_tag = message
            yield letter_of(delivery, self._queue, self._ids), delivery_tag

    def remove(self, delivery_tag: int) -> None:
        """Remove a letter from the dead set."""
        self._channel.basic_ack(delivery_tag)

    def remove_arrivals(self, matches: Callable[[Delivery], bool], count: int) -> None:
        """Remove `count` matching messages that arrived after the start; stop early if no more messages come."""
        while count and (message := self._next_message()) is not None:
            delivery, delivery_tag = message
            if matches(delivery):
                self.remove(delivery_tag)
                count -= 1

    def _next_message(self) -> tuple[Delivery, int] | None:
        """Return the next message with its delivery tag, or None if no more come."""
        while not self._arrived:
            try:
                self._connection.drain_events(timeout=_MESSAGE_TIMEOUT)
            except TimeoutError:
                # The messages expired, or another consumer took them after the count.
                if not self._message_count() and not self._message_count() and not self._arrived:
                    return None
        message = self._channel.message_to_python(self._arrived.popleft())
        return Delivery.of(message, self._queue), message.delivery_tag

    def _message_count(self) -> int:
        return int(self._channel.queue_declare(self._queue, passive=True).message_count)


def _require_missing(queue: str, error: NotFound) -> None:
    """Raise QueueUnavailable unless a queue does not exist: one whose node is down is not empty."""
    if node := node_down(error):
        raise QueueUnavailable(f"dead set {queue}: its node {node} is down; the letters return with it") from error


def _granted(request: Callable[[], object]) -> bool:
    """Return whether the broker granted a request for exclusive use; False while another connection has it."""
    try:
        request()
    except ResourceLocked:
        return False
    except AccessRefused as error:
        if "in exclusive use" in str(error):
            return False
        raise
    return True
