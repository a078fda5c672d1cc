"""Read the queues of a dead set without changing them, by an exclusive consumer whose end requeues all in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from amqp.exceptions import AccessRefused, NotFound, ResourceLocked
from kombu import Queue

from ..connection import CONNECTION_ERRORS, close_answered, closed_answered, connected
from ..declaring import message_count, require_missing
from ..delivery import Delivery
from ..errors import DeadSetBusy
from .letters import DeadLetter, LetterIds
from .moved import as_before_move

#: Letters that one reading holds unacknowledged at most: RabbitMQ keeps them in memory, and requeues them one by one.
MAX_READ = 5_000

#: Seconds to wait until another reader of the dead set has finished.
LEASE_TIMEOUT = 10.0
#: Seconds between two attempts to get the lease.
_LEASE_INTERVAL = 0.1

#: Seconds to wait for a message that the queue's count announced.
_MESSAGE_TIMEOUT = 1.0


@contextmanager
def leased(broker: str, queue: str) -> Iterator[DeadSetLease]:
    """Yield a lease on a dead set. Raises DeadSetBusy while another process has it, and BrokerUnreachable."""
    with connected(broker) as connection:
        lease = DeadSetLease(broker, queue, connection)
        lease.acquire()
        yield lease
        # A connection that broke has ended the lease. What the act did before must still be reported.
        with suppress(*CONNECTION_ERRORS):
            close_answered(connection)


class DeadSetLease:
    """The right to read and move the letters of a dead set, by an exclusive queue that ends with its connection.

    `name` is the documented queue of the set. An exclusive consumer of it alone is not enough. Between counting and
    consuming, another process could begin and end. The messages that it held would not be counted.
    """

    def __init__(self, broker: str, name: str, connection: Any) -> None:
        self.name = name
        self._broker = broker
        self._connection = connection

    def acquire(self) -> None:
        """Declare the lease queue. Raises DeadSetBusy after LEASE_TIMEOUT seconds."""
        lease = f"{self.name}.lease"
        self._wait(
            lambda: (
                _granted(lambda: self._connection.channel().queue_declare(lease, exclusive=True))
                and self._is_unused(self.name)
            ),
            self.name,
        )

    def wait_until_unused(self, queue: str) -> None:
        """Wait until no other consumer has a queue: the process that had the lease may have been killed just now.

        The messages that it held are in the queue again then. Raises DeadSetBusy after LEASE_TIMEOUT seconds.
        """
        self._wait(lambda: self._is_unused(queue), queue)

    @contextmanager
    def reading(
        self, queue: str = "", *, ids: LetterIds | None = None, first: int = MAX_READ, window: int = MAX_READ
    ) -> Iterator[DeadSetReader]:
        """Yield a reader of the letters in a queue of the set, by default the documented one, that are there now.

        Letters that are not removed keep their order. `ids` gives the letters their ids. At most `first` letters are
        read, and `window` are unacknowledged at a time. To read more than `window`, remove letters on the way.
        """
        with connected(self._broker) as connection, closed_answered(connection):
            reader = DeadSetReader(connection, queue or self.name, self.name, ids or LetterIds())
            reader.start(first, window)
            yield reader

    def depth(self) -> int:
        """Return the number of letters in the documented queue."""
        return self.count(self.name) or 0

    def count(self, queue: str) -> int | None:
        """Return the number of messages in a queue of the set, None where it does not exist."""
        with self._connection.channel() as channel:
            return message_count(channel, queue)

    def declare(self, queue: Queue) -> None:
        """Declare a queue of the set."""
        with self._connection.channel() as channel:
            queue(channel).declare()

    def delete_if_empty(self, queue: str) -> None:
        """Delete a queue of the set, unless there are messages in it.

        A consumer may hold some, which do not count as messages in the queue: one of a process that was just killed.
        """
        with suppress(*CONNECTION_ERRORS), self._connection.channel() as channel:
            channel.queue_delete(queue, if_unused=True, if_empty=True)

    def _wait(self, is_free: Callable[[], bool], queue: str) -> None:
        deadline = time.monotonic() + LEASE_TIMEOUT
        while not is_free():
            if time.monotonic() > deadline:
                raise DeadSetBusy(f"another process works on the dead set {queue}; try again when it has ended")
            time.sleep(_LEASE_INTERVAL)

    def _is_unused(self, queue: str) -> bool:
        """Return whether an exclusive consumer is granted. A killed process may still have one for a moment."""
        with connected(self._broker) as connection, closed_answered(connection):
            channel = connection.channel()
            channel.basic_qos(0, 1, False)
            try:
                return _granted(lambda: channel.basic_consume(queue, callback=lambda _message: None, exclusive=True))
            except NotFound as error:
                require_missing(queue, error)
                return True


class DeadSetReader:
    """The letters of one queue of a dead set, each unacknowledged.

    `depth` is how many are read, and `total` how many there were at the start.
    """

    def __init__(self, connection: Any, queue: str, set_name: str, ids: LetterIds) -> None:
        self._connection = connection
        self._channel = connection.channel()
        self._queue = queue
        self._set_name = set_name
        self._ids = ids
        self._arrived: deque[Any] = deque()
        self.depth = self.total = 0

    def start(self, first: int, window: int) -> None:
        """Count, then consume at most `first` messages. A queue that does not exist has none."""
        self.total = message_count(self._channel, self._queue) or 0
        self.depth = min(self.total, first)
        if self.depth:
            self._channel.basic_qos(0, min(self.depth, window), False)
            self._channel.basic_consume(self._queue, callback=self._arrived.append, exclusive=True)

    def __iter__(self) -> Iterator[tuple[DeadLetter, int]]:
        """Yield the letters with their delivery tags, oldest first, and keep none in memory."""
        for delivery, delivery_tag in self.deliveries():
            letter_id = self._ids.next_id(self._set_name, delivery)
            yield DeadLetter.of(delivery, id=letter_id, set=self._set_name), delivery_tag

    def deliveries(self) -> Iterator[tuple[Delivery, int]]:
        """Yield the messages with their delivery tags, each as it was before it was moved to a shard."""
        for _ in range(self.depth):
            while not self._arrived:
                try:
                    self._connection.drain_events(timeout=_MESSAGE_TIMEOUT)
                except TimeoutError:
                    # The messages expired, or another consumer took them after the count.
                    if not any(message_count(self._channel, self._queue) for _ in range(2)) and not self._arrived:
                        return
            message = self._channel.message_to_python(self._arrived.popleft())
            yield as_before_move(Delivery.of(message, self._set_name)), message.delivery_tag

    def remove(self, delivery_tag: int) -> None:
        """Remove a message from the queue."""
        self._channel.basic_ack(delivery_tag)


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
