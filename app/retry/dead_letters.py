"""Work with a dead set: look without changing it, replay, confirm first and acknowledge after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from kombu import Connection

from app.amqp.delivery import Delivery
from app.amqp.publish import Outgoing, Publisher
from app.retry.carry_out import replacement
from app.retry.dead_set import DEAD_ID, QUEUE, REASON
from app.retry.delay_queues import REPLAY
from config.routes import POLICY_OF_QUEUE
from config.settings import Settings
from config.topology import dead_queue, site_exchange


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
    """The dead set of the `site` group, on a connection of its own."""

    def __init__(self, settings: Settings, publisher: Publisher) -> None:
        self._settings = settings
        self._publisher = publisher

    def look(self) -> list[DeadLetter]:
        """Return every dead message, oldest first. They go back when the channel closes, in their order."""
        with self._channel() as channel:
            return [DeadLetter.of(message) for message in _take(channel)]

    def replay(self, chosen: Callable[[DeadLetter], bool], *, fresh: bool = False) -> list[DeadLetter]:
        """Send the chosen ones back to their queues; return them.

        A replay keeps its budget, as the async-worker document says: it is not retried again. With `fresh` it starts a
        new one. Each is confirmed in its queue before it leaves the dead set: killed in between, it is in both.
        """
        replayed = []
        with self._channel() as channel:
            for message in _take(channel):
                letter = DeadLetter.of(message)
                if chosen(letter):
                    self._publisher.publish([_again(letter, fresh=fresh)])
                    message.ack()
                    replayed.append(letter)
        return replayed

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        with Connection(self._settings.broker, connect_timeout=self._settings.publish_timeout) as connection:
            dead_queue()(connection.channel()).declare()
            with connection.channel() as channel:
                yield channel


def _take(channel: Any) -> Iterator[Any]:
    """Yield the messages there now, unacknowledged: no more than the depth at the start, so that none goes round."""
    queue = dead_queue()(channel)
    for _ in range(queue.queue_declare(passive=True).message_count):
        message = queue.get(no_ack=False)
        if message is None:
            return
        yield message


def _again(letter: DeadLetter, *, fresh: bool) -> Outgoing:
    dead = letter.delivery
    lived = {name: value for name, value in dead.headers.items() if not name.startswith("perennial-")}
    added: dict[str, Any] = {"perennial-replay-of": letter.id, REPLAY: "fresh" if fresh else "keep"}
    if fresh:
        added["current-iteration"] = 0
    queue = letter.queue if letter.queue in POLICY_OF_QUEUE else dead.queue
    return replacement(replace(dead, headers=lived, queue=queue), exchange=site_exchange.name, headers=added)


def _first_queue(delivery: Delivery) -> str:
    """Return the queue from which the broker itself dead-lettered a message, or an empty text."""
    return str(delivery.headers.get("x-first-death-queue") or "")


def _reason(delivery: Delivery) -> str:
    """Return the reason code: ours, or the broker's own, or that nothing was bound for its key."""
    told = delivery.headers.get(REASON) or delivery.headers.get("x-first-death-reason")
    return str(told).replace("_", "-") if told else "unroutable"
