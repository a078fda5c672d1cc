"""Delay queues: peek at the messages that wait in one, and move them out of it before their time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from .connection import closed_answered, connected
from .dead_letters.letters import LetterIds
from .declaring import message_count
from .delivery import Delivery
from .errors import error_text
from .failure import Failure
from .headers import unacknowledged
from .outgoing import Outgoing
from .policies.base import Policy, Postponed, RetryPolicies, replacement_of
from .policies.delays import DEAD_LETTER_EXCHANGE, MAX_TTL_MS
from .publishing import Publisher

#: Messages that are read at once.
MAX_PEEKED = 50
#: Messages that one call moves, and seconds after which it stops.
MAX_MOVED, MOVE_SECONDS = 5_000, 20.0
#: Messages that are published before the originals are acknowledged.
_BATCH = 50
#: Messages that are searched for given ids.
_MAX_SEARCHED = 1_000

#: Returns the message that replaces a waiting one.
Replace = Callable[[Delivery], Outgoing]


@dataclass(frozen=True, slots=True)
class DelayQueue:
    """A delay queue by name: its policy, the ms that a message waits in it, and the exchange that gets it then."""

    name: str
    policy: Policy
    delay_ms: int
    back_to: str

    @classmethod
    def of(cls, name: str, policies: RetryPolicies) -> DelayQueue | None:
        """Return the delay queue of a name, or None for a queue in which no policy lets messages wait."""
        # A queue of a duration that a client chose is known by its name alone.
        duration = re.search(r"\.delay\.([1-9][0-9]{0,9})$", name)
        delay_ms = int(duration[1]) if duration else 0
        for policy in policies:
            chosen = policy.delay_queue(delay_ms) if 0 < delay_ms <= MAX_TTL_MS else None
            for queue in (*policy.queues(), *([chosen] if chosen else ())):
                arguments = queue.queue_arguments or {}
                if queue.name == name and {"x-message-ttl", DEAD_LETTER_EXCHANGE} <= arguments.keys():
                    return cls(name, policy, int(arguments["x-message-ttl"]), str(arguments[DEAD_LETTER_EXCHANGE]))
        return None

    def work_queue(self, delivery: Delivery) -> str:
        """Return the work queue that a waiting message is for."""
        return self.policy.queue_of(delivery.routing_key)

    def sent_now(self, delivery: Delivery) -> Outgoing:
        """Return the message that the broker would send when the wait is over, with the budget that is left."""
        found = replace(delivery, queue=self.work_queue(delivery))
        # A policy that counts by the broker's headers, which a new message has not, keeps the count in one of its own.
        wait = self.policy.postpone(found, 1.0)
        headers = wait.headers if isinstance(wait, Postponed) else {}
        return Outgoing.replacing(delivery, exchange=self.back_to, routing_key=delivery.routing_key, headers=headers)

    def dead_lettered(self, delivery: Delivery, failure: Failure) -> Outgoing:
        """Return the dead letter of a waiting message."""
        found = replace(delivery, queue=self.work_queue(delivery))
        end = replacement_of(self.policy.end(found, failure, attempts=self.policy.attempts(found)), delivery)
        if end is None:
            raise TypeError(f"{self.policy.name} dead-letters nothing")
        return end


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message in a delay queue, by an `id` that stays. It was delivered and returned `times_read` times."""

    id: str
    delivery: Delivery
    times_read: int


@dataclass(frozen=True, slots=True)
class Moved:
    """How many messages were moved, and how many are left. `failure` is why one could not be published."""

    moved: int
    left: int
    failure: str = ""


def peek(broker: str, queue: str, *, most: int = MAX_PEEKED) -> list[Waiting]:
    """Return the messages that leave a delay queue first, at most `most`. They are returned at once, in their order.

    A returned message keeps its expiry. A quorum queue counts the read as a delivery of each message; at its delivery
    limit, 20 by default since RabbitMQ 4, it sends the message on as if the wait were over. Nothing is lost.
    A missing queue is empty: it is declared when a message needs it. Raises QueueUnavailable and BrokerUnreachable.
    """
    with _reading(broker, queue) as (channel, depth):
        return [each for each, _ in _messages(channel, queue, min(depth, most))]


def move(
    broker: str, queue: str, publisher: Publisher, convert: Replace, *, ids: Sequence[str] | None, most: int = MAX_MOVED
) -> Moved:
    """Publish replacements of waiting messages, confirmed, and then acknowledge these; None as `ids` means all.

    After a kill at any point a message waits, or its replacement was published, or both. A message that cannot be
    published goes on waiting. Raises QueueUnavailable and BrokerUnreachable.
    """
    wanted = None if ids is None else set(ids)
    until = time.monotonic() + MOVE_SECONDS
    moved, failure = 0, ""
    with _reading(broker, queue) as (channel, depth):
        batch: list[tuple[Delivery, int]] = []
        for each, tag in _messages(channel, queue, min(depth, most if wanted is None else _MAX_SEARCHED)):
            if wanted is None or each.id in wanted:
                batch.append((each.delivery, tag))
                if wanted is not None:
                    wanted.discard(each.id)
            if len(batch) >= _BATCH:
                done, failure = _publish(channel, publisher, convert, batch)
                moved, batch = moved + done, []
            if failure or time.monotonic() > until or wanted == set():
                break
        if batch and not failure:
            done, failure = _publish(channel, publisher, convert, batch)
            moved += done
    return Moved(moved, max(0, depth - moved), failure)


def _publish(
    channel: Any, publisher: Publisher, convert: Replace, batch: Sequence[tuple[Delivery, int]]
) -> tuple[int, str]:
    """Publish the replacements and acknowledge the originals of those that were confirmed; return their number."""
    failures = publisher.publish_each([convert(delivery) for delivery, _ in batch])
    for position, (_, tag) in enumerate(batch):
        if position not in failures:
            channel.basic_ack(tag)
    reason = next(map(error_text, failures.values()), "")
    return len(batch) - len(failures), reason


@contextmanager
def _reading(broker: str, queue: str) -> Iterator[tuple[Any, int]]:
    """Yield a channel and the number of ready messages. The broker requeues afterwards what was not acknowledged."""
    with connected(broker) as connection, closed_answered(connection):
        channel = connection.channel()
        yield channel, message_count(channel, queue) or 0


def _messages(channel: Any, queue: str, most: int) -> Iterator[tuple[Waiting, int]]:
    """Yield messages with their delivery tags, each unacknowledged. Equal messages are numbered in their order."""
    ids = LetterIds()
    for _ in range(most):
        got = channel.basic_get(queue)
        if got is None:
            return
        delivery = Delivery.of(channel.message_to_python(got), queue)
        yield Waiting(ids.next_id(queue, delivery), delivery, unacknowledged(delivery)), got.delivery_tag
