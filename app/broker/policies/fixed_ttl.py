"""A countdown in `mb-retries` and one retry queue with a fixed TTL, as the Cover Art Archive's indexer has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kombu import Exchange, Queue

from ..delivery import Delivery
from ..headers import (
    ATTEMPTS,
    dead_letter_headers,
    failure_headers,
    headers_for_replay,
    integer,
    keeps_budget,
    whole_number,
)
from .base import MAX_MESSAGE, Address, Budget, Dead, Decision, Failure, Postponed, Retry
from .waiting import DEAD_LETTER, QueueType, delay_for, delay_queue

RETRIES, EXCEPTIONS = "mb-retries", "mb-exceptions"

#: Errors that travel with a message; older ones are forgotten.
MAX_EXCEPTIONS = 10

#: A header that asks for more retries than this is garbage.
MOST_RETRIES = 1_000


@dataclass(frozen=True, slots=True)
class FixedTtl:
    """The Cover Art Archive document's policy: every failure waits equally long, and none is permanent.

    Work queues are bound to the direct exchange `prefix` by `keys` (queue -> routing key). What failed waits in
    `<prefix>.retry`, whose TTL gives it back with its routing key, and ends in `<prefix>.failed`. The topology is the
    document's to the byte, so that a broker that has it already is served. With `fail_fast` a permanent error ends at
    once.
    """

    prefix: str
    keys: Mapping[str, str] = field(default_factory=dict)
    ttl_ms: int = 14_400_000
    retry_max: int = 4
    fail_fast: bool = False
    postpone_type: QueueType = "quorum"

    name: ClassVar[str] = "fixed_ttl"
    replay_budget: ClassVar[Budget] = "fresh"
    rejects: ClassVar[bool] = False

    @property
    def dead(self) -> Queue:
        """`<prefix>.failed`, behind a fanout exchange that keeps the routing key."""
        exchange = Exchange(f"{self.prefix}.failed", type="fanout")
        return Queue(exchange.name, exchange=exchange, routing_key="", durable=True)

    @property
    def retry(self) -> Queue:
        """`<prefix>.retry`: no dead-letter routing key, so that the original key leads home."""
        exchange = Exchange(f"{self.prefix}.retry", type="fanout")
        arguments = {"x-message-ttl": self.ttl_ms, DEAD_LETTER: self.prefix}
        return Queue(exchange.name, exchange=exchange, routing_key="", durable=True, queue_arguments=arguments)

    def queues(self) -> list[Queue]:
        """Return failed and retry queue; queues to postpone in are made on demand."""
        return [self.dead, self.retry]

    def work_arguments(self, queue: str) -> dict[str, Any]:
        """Return none: the document's queues have none, and RabbitMQ refuses to declare them otherwise."""
        del queue
        return {}

    def work_queue(self, queue: str) -> Queue:
        """Return the queue, bound to the direct exchange `prefix` by its key, or its name where `keys` has none."""
        exchange = Exchange(self.prefix, type="direct")
        return Queue(queue, exchange, routing_key=self.keys.get(queue, queue), durable=True)

    def attempts(self, delivery: Delivery) -> int:
        """Return our own count; a message that another consumer retried brings its countdown and its errors along."""
        theirs = len(_errors(delivery.headers)) if RETRIES in delivery.headers else 0
        return whole_number(delivery.headers, ATTEMPTS, default=theirs)

    def retries(self, delivery: Delivery) -> int:
        """Return the retries used and those that `mb-retries` has left."""
        return self.attempts(delivery) + self._left(delivery)

    def decide_before_run(self, delivery: Delivery) -> None:
        """Let every message run: these queues count no deliveries."""
        del delivery

    def decide(self, delivery: Delivery, failure: Failure) -> Decision:
        """Return Retry with one retry less while there are any, else Dead with -1."""
        left, attempts = self._left(delivery), self.attempts(delivery) + 1
        errors = {EXCEPTIONS: [*_errors(delivery.headers), str(failure)[:MAX_MESSAGE]][-MAX_EXCEPTIONS:]}
        if left <= 0 or keeps_budget(delivery) or (failure.permanent and self.fail_fast):
            told = errors | dead_letter_headers(delivery, failure, attempts=attempts)
            return Dead(self.dead, self._key(delivery), {RETRIES: -1, **told})
        told = errors | failure_headers(delivery, failure) | {ATTEMPTS: attempts}
        return Retry(self.retry, self._key(delivery), self.ttl_ms, {RETRIES: left - 1, **told})

    def postpone(self, delivery: Delivery, seconds: float, *, exactly: bool = False) -> Decision:
        """Return a wait on the ladder, in queues beside those of the document, with `mb-retries` unspent."""
        delay_ms = delay_for(seconds, exactly=exactly)
        queue = delay_queue(self.prefix, delay_ms, back_to=self.prefix, queue_type=self.postpone_type)
        return Postponed(queue, self._key(delivery), delay_ms)

    def replay_address(self, queue: str, routing_key: str) -> Address:
        """Return the direct exchange with the queue's binding key."""
        return Address(self.prefix, self.keys.get(queue, routing_key))

    def replay_headers(self, headers: Mapping[str, Any], budget: Budget) -> dict[str, Any]:
        """Forget the countdown for a fresh budget; what went wrong stays told."""
        lived = headers_for_replay(headers, budget)
        return {name: value for name, value in lived.items() if name != RETRIES or budget == "keep"}

    def _left(self, delivery: Delivery) -> int:
        """Return the retries left; a negative number, which a failed message carries, is none."""
        left = integer(delivery.headers.get(RETRIES))
        return self.retry_max if left is None or left > MOST_RETRIES else max(0, left)

    def _key(self, delivery: Delivery) -> str:
        """Return the key that leads home; that of a delivery through the default exchange does not."""
        return self.keys.get(delivery.queue, delivery.routing_key)


def _errors(headers: Mapping[str, Any]) -> list[str]:
    """Return the errors so far, oldest first, whatever another producer made of the header."""
    value = headers.get(EXCEPTIONS)
    errors = value if isinstance(value, list) else [value] if value else []
    return [str(each)[:MAX_MESSAGE] for each in errors]
