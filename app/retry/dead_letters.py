"""Work with a dead set: look without changing it, replay, confirm first and acknowledge after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from kombu import Connection, Queue

from app.amqp.delivery import Delivery
from app.amqp.publish import Outgoing, Publisher
from app.errors import InvalidMessage
from app.retry.carry_out import replacement
from app.retry.death import DEAD_ID, QUEUE, REASON
from app.retry.policy import Policy


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead message. `id` is its `perennial-dead-id`; messages that others put there go by a hash of their content."""

    id: str
    queue: str
    reason: str
    delivery: Delivery

    @classmethod
    def of(cls, message: Any) -> DeadLetter:
        """Read a message of the dead set."""
        delivery = Delivery.of(message, message.delivery_info.get("routing_key") or "")
        headers = delivery.headers
        queue = str(headers.get(QUEUE) or _first_queue(delivery) or delivery.queue)
        return cls(str(headers.get(DEAD_ID) or delivery.fingerprint()), queue, _reason(delivery), delivery)

    def header(self, name: str) -> Any:
        """Return one of the headers of the death, named without `perennial-`."""
        return self.delivery.headers.get(f"perennial-{name}", "")


class DeadSet:
    """The dead set of a policy, on a connection of its own."""

    def __init__(self, broker: str, policy: Policy, publisher: Publisher) -> None:
        self._broker = broker
        self._policy = policy
        self._publisher = publisher

    def look(self) -> list[DeadLetter]:
        """Return every dead message, oldest first. They go back when the channel closes, in their order."""
        with self._channel() as channel:
            return [DeadLetter.of(message) for message in self._take(channel)]

    def replay(self, chosen: Callable[[DeadLetter], bool], *, fresh: bool = False) -> list[DeadLetter]:
        """Send the chosen ones back to their queues; return them.

        A replay keeps its budget, as the async-worker document says: it is not retried again. With `fresh` it starts a
        new one. Each is confirmed in its queue before it leaves the dead set: killed in between, it is in both.
        """
        replayed = []
        with self._channel() as channel:
            for message in self._take(channel):
                letter = DeadLetter.of(message)
                if chosen(letter):
                    self._publisher.publish([self._again(letter, fresh=fresh)])
                    message.ack()
                    replayed.append(letter)
        return replayed

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        with Connection(self._broker, connect_timeout=5) as connection:
            _of(self._policy)(connection.channel()).declare()
            with connection.channel() as channel:
                yield channel

    def _take(self, channel: Any) -> Iterator[Any]:
        """Yield the messages there now, unacknowledged: the depth at the start, so that none goes round."""
        queue = _of(self._policy)(channel)
        for _ in range(queue.queue_declare(passive=True).message_count):
            message = queue.get(no_ack=False)
            if message is None:
                return
            yield message

    def _again(self, letter: DeadLetter, *, fresh: bool) -> Outgoing:
        dead = letter.delivery
        home = self._policy.home(letter.queue, dead.routing_key)
        headers = self._policy.revived(dead.headers, "fresh" if fresh else "keep")
        bare = replace(dead, headers={})
        return replacement(bare, exchange=home.exchange, routing_key=home.routing_key, headers=headers)


def _first_queue(delivery: Delivery) -> str:
    """Return the queue from which the broker itself dead-lettered a message, or an empty text."""
    return str(delivery.headers.get("x-first-death-queue") or "")


def _reason(delivery: Delivery) -> str:
    """Return the reason code: ours, or the broker's own, or that nothing was bound for its key."""
    told = delivery.headers.get(REASON) or delivery.headers.get("x-first-death-reason")
    return str(told).replace("_", "-") if told else "unroutable"


def _of(policy: Policy) -> Queue:
    queue = policy.dead
    if queue is None:
        raise InvalidMessage(f"policy {policy.name} has no dead set")
    return queue
