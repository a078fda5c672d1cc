"""A countdown in `mb-retries` and one retry queue with a fixed TTL: the convention of the Cover Art Archive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kombu import Exchange, Queue

from ..delivery import Delivery
from ..failure import MAX_MESSAGE, Failure
from ..headers import (
    ATTEMPTS,
    ReplayBudget,
    dead_letter_headers,
    failure_headers,
    headers_for_replay,
    integer,
    whole_number,
)
from .base import Address, Dead, Policy, Postponed, Retry
from .delays import DEAD_LETTER_EXCHANGE, QueueType, delay_for, delay_queue

RETRIES, EXCEPTIONS = "mb-retries", "mb-exceptions"

#: Errors that a message carries; older ones are removed.
MAX_EXCEPTIONS = 10

#: A header with more retries than this is invalid, and counts as missing.
MAX_RETRIES = 1_000


@dataclass(frozen=True, slots=True)
class FixedTtl(Policy):
    """The policy of the Cover Art Archive's document: every failure waits equally long.

    Work queues are bound to the direct exchange `prefix` by `keys` (queue -> routing key). A failed message waits in
    `<prefix>.retry`, whose TTL returns it with its routing key, and ends in `<prefix>.failed`. Every argument is that
    of the document, since a broker may have these queues already.
    """

    prefix: str
    keys: Mapping[str, str] = field(default_factory=dict)
    ttl_ms: int = 14_400_000
    retry_max: int = 4
    postpone_type: QueueType = "quorum"
    delivery_limit: int = 50
    #: Reasons of failures that are not retried.
    fatal: frozenset[str] = frozenset()

    name: ClassVar[str] = "fixed_ttl"
    #: Other programs may consume the failed messages.
    shards_dead_set: ClassVar[bool] = False

    @property
    def dead(self) -> Queue:
        """`<prefix>.failed`, behind a fanout exchange that keeps the routing key."""
        exchange = Exchange(f"{self.prefix}.failed", type="fanout")
        return Queue(exchange.name, exchange=exchange, routing_key="", durable=True)

    @property
    def retry(self) -> Queue:
        """`<prefix>.retry`, without a dead-letter routing key: a message returns by its own key."""
        exchange = Exchange(f"{self.prefix}.retry", type="fanout")
        arguments = {"x-message-ttl": self.ttl_ms, DEAD_LETTER_EXCHANGE: self.prefix}
        return Queue(exchange.name, exchange=exchange, routing_key="", durable=True, queue_arguments=arguments)

    def queues(self) -> list[Queue]:
        """Return the failed and the retry queue; queues for postponements are declared on demand."""
        return [self.dead, self.retry]

    def work_arguments(self) -> dict[str, Any]:
        """Return no arguments: the document's queues have none, and RabbitMQ refuses to redeclare them with others."""
        return {}

    def work_queue(self, queue: str) -> Queue:
        """Return the queue, bound to the direct exchange `prefix` by its key in `keys`, or else by its name."""
        exchange = Exchange(self.prefix, type="direct")
        return Queue(queue, exchange, routing_key=self.keys.get(queue, queue), durable=True)

    def attempts(self, delivery: Delivery) -> int:
        """Return the failed runs, or for a message that another consumer retried the number of its `mb-exceptions`."""
        listed = len(_errors(delivery.headers)) if RETRIES in delivery.headers else 0
        return whole_number(delivery.headers, ATTEMPTS, default=listed)

    def retries(self, delivery: Delivery) -> int:
        """Return the retries used and those that `mb-retries` has left."""
        return self.attempts(delivery) + self._left(delivery)

    def is_fatal(self, failure: Failure) -> bool:
        """Return whether the failure is one of those that are not retried; a permanent one is retried as any other."""
        return failure.reason in self.fatal

    def retry_after(self, delivery: Delivery, failure: Failure) -> Retry:
        """Return the wait in the retry queue, with `mb-retries` reduced by one."""
        headers = {RETRIES: self._left(delivery) - 1, EXCEPTIONS: _errors_with(delivery, failure)}
        headers |= failure_headers(delivery, failure) | {ATTEMPTS: self.attempts(delivery) + 1}
        return Retry(self.retry, self._key(delivery), self.ttl_ms, headers)

    def wait_ms(self, delivery: Delivery, run: int) -> int:
        """Return `ttl_ms`."""
        del delivery, run
        return self.ttl_ms

    def end(self, delivery: Delivery, failure: Failure, *, attempts: int) -> Dead:
        """Return the way to the failed queue, with -1 as `mb-retries`."""
        headers = {RETRIES: -1, EXCEPTIONS: _errors_with(delivery, failure)}
        headers |= dead_letter_headers(delivery, failure, attempts=attempts)
        return Dead(self.dead, self._key(delivery), headers)

    def postpone(self, delivery: Delivery, seconds: float, *, exactly: bool = False) -> Postponed:
        """Return a wait in delay queues beside those of the document; `mb-retries` stays as it is."""
        delay_ms = delay_for(seconds, exactly=exactly)
        return Postponed(self.delay_queue(delay_ms), self._key(delivery), delay_ms)

    def delay_queue(self, delay_ms: int) -> Queue:
        """Return the queue of one duration in ms; raises ValueError for an invalid TTL."""
        return delay_queue(self.prefix, delay_ms, back_to=self.prefix, queue_type=self.postpone_type)

    def queue_of(self, routing_key: str) -> str:
        """Return the work queue that is bound by a key."""
        return next((queue for queue, key in self.keys.items() if key == routing_key), routing_key)

    def replay_address(self, queue: str, routing_key: str) -> Address:
        """Return the direct exchange with the queue's binding key."""
        return Address(self.prefix, self.keys.get(queue, routing_key))

    def replay_headers(self, headers: Mapping[str, Any], budget: ReplayBudget) -> dict[str, Any]:
        """Return the headers without the countdown if the budget is fresh; `mb-exceptions` stays."""
        replayed = headers_for_replay(headers, budget)
        return {name: value for name, value in replayed.items() if name != RETRIES or budget == "keep"}

    def _left(self, delivery: Delivery) -> int:
        """Return the retries left; a dead-lettered message carries -1, which counts as 0."""
        left = integer(delivery.headers.get(RETRIES))
        return self.retry_max if left is None or left > MAX_RETRIES else max(0, left)

    def _key(self, delivery: Delivery) -> str:
        """Return the binding key of the queue; a delivery through the default exchange has another key."""
        return self.keys.get(delivery.queue, delivery.routing_key)


def _errors(headers: Mapping[str, Any]) -> list[str]:
    """Return the errors so far, oldest first; another producer may have written anything into the header."""
    value = headers.get(EXCEPTIONS)
    errors = value if isinstance(value, list) else [value] if value else []
    return [str(each)[:MAX_MESSAGE] for each in errors]


def _errors_with(delivery: Delivery, failure: Failure) -> list[str]:
    """Return the latest errors, that of this failure included."""
    return [*_errors(delivery.headers), str(failure)[:MAX_MESSAGE]][-MAX_EXCEPTIONS:]
