"""The contract of a retry policy: a delivery and a failure go in, a decision comes out, and nothing else happens.

An application has its policies by queue.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kombu import Exchange, Queue

from ..delivery import Delivery
from ..errors import InvalidMessage
from ..failure import Failure
from ..headers import ReplayBudget, headers_for_replay, keeps_budget, unacknowledged
from ..outgoing import Outgoing


@dataclass(frozen=True, slots=True)
class Address:
    """The exchange and routing key that a message is published to."""

    exchange: str
    routing_key: str

    def __str__(self) -> str:
        return f"exchange {self.exchange!r} with key {self.routing_key!r}"


@dataclass(frozen=True, slots=True)
class _Wait:
    """Publish to the exchange of `queue`, wait there for `delay_ms`, and run again."""

    queue: Queue
    routing_key: str
    delay_ms: int
    headers: Mapping[str, Any] = field(default_factory=dict)


class Retry(_Wait):
    """A wait that spends one retry."""

    __slots__ = ()


class Postponed(_Wait):
    """A wait that spends nothing."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Reject:
    """Reject: the broker dead-letters the message to the retry queue `queue` for `delay_ms`. Spends one retry."""

    queue: Queue
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Dead:
    """Publish to the exchange of `queue`, which is a dead set, with these headers added."""

    queue: Queue
    routing_key: str
    headers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drop:
    """Acknowledge the message and do nothing: another one will come."""


Decision = Retry | Reject | Postponed | Dead | Drop


def replacement_of(decision: Decision, delivery: Delivery) -> Outgoing | None:
    """Return the message that a decision publishes in place of the delivered one, or None if it publishes nothing."""
    match decision:
        case Retry(queue, key, _, headers) | Postponed(queue, key, _, headers) | Dead(queue, key, headers):
            return Outgoing.replacing(delivery, exchange=queue.exchange.name, routing_key=key, headers=headers)
        case Reject() | Drop():
            return None


class Policy(ABC):
    """Decides what happens to failed messages, and names the queues in which they wait and end.

    A policy is a value of names and numbers, without a connection. Its methods never raise, whatever headers a foreign
    producer sent. The law of the budget is here; a subclass says how a message waits and how it ends.
    """

    __slots__ = ()

    #: Its name in tables and diagrams.
    name: ClassVar[str]
    #: The budget of a replay unless the operator chooses another.
    replay_budget: ClassVar[ReplayBudget] = "fresh"
    #: Whether it may decide Reject: its queues then need the dead-letter exchange of `work_arguments`.
    rejects: ClassVar[bool] = False
    #: Whether the oldest letters of a long dead set are moved to shards of it.
    shards_dead_set: ClassVar[bool] = True
    #: Workers that a message may crash.
    delivery_limit: int

    @property
    @abstractmethod
    def dead(self) -> Queue | None:
        """The dead set of this policy, bound to its exchange; None if it never dead-letters."""

    @abstractmethod
    def queues(self) -> Sequence[Queue]:
        """Return the queues that it needs on the broker, with exchanges and bindings; the dead set comes first."""

    @abstractmethod
    def work_arguments(self) -> Mapping[str, Any]:
        """Return the arguments to declare work queues with, so that the broker drops nothing silently."""

    def work_queue(self, queue: str) -> Queue:
        """Return a work queue with those arguments, for Celery's setting `task_queues`."""
        arguments = self.work_arguments() or None
        return Queue(queue, Exchange(""), routing_key=queue, durable=True, queue_arguments=arguments)

    def budget_headers(self, *, timeout_ms: int | None = None, retry_max: int | None = None) -> Mapping[str, Any]:
        """Return the headers that carry the budget of a new message, for a policy whose messages carry one.

        Raises InvalidMessage for numbers where they do not.
        """
        if timeout_ms is None and retry_max is None:
            return {}
        raise InvalidMessage(
            f"retry_timeout_ms {timeout_ms}, retry_max {retry_max}: the queue's policy is {self.name}, "
            "under which no message carries its own budget"
        )

    @abstractmethod
    def attempts(self, delivery: Delivery) -> int:
        """Return how many runs of this message have failed before this delivery."""

    @abstractmethod
    def retries(self, delivery: Delivery) -> int:
        """Return how many retries the budget of this message has in all."""

    def decide_before_run(self, delivery: Delivery, *, task: str = "", worker: str = "") -> Decision | None:
        """Return None to let a message run, or the end of one whose deliveries crashed `delivery_limit` workers.

        `task` is the one that it is for, and `worker` the one that has it now.
        """
        crashes = unacknowledged(delivery)
        if crashes < self.delivery_limit:
            return None
        text = f"{crashes} deliveries were neither acknowledged nor rejected"
        failure = Failure(reason="delivery-limit", exception="", message=text, at=time.time(), task=task, worker=worker)
        return self.end(delivery, failure, attempts=self.attempts(delivery) + crashes)

    def decide(self, delivery: Delivery, failure: Failure) -> Decision:
        """Return the decision on a message whose run failed: a retry while its budget lasts, else its end."""
        may_retry = self.has_retries(delivery) and not self.is_fatal(failure)
        retry = self.retry_after(delivery, failure) if may_retry else None
        return retry or self.end(delivery, failure, attempts=self.attempts(delivery) + 1)

    def has_retries(self, delivery: Delivery) -> bool:
        """Return whether a failure of this run is retried unless it is fatal."""
        return not keeps_budget(delivery) and self.attempts(delivery) < self.retries(delivery)

    def is_fatal(self, failure: Failure) -> bool:
        """Return whether a retry would fail in the same way."""
        return failure.permanent

    @abstractmethod
    def retry_after(self, delivery: Delivery, failure: Failure) -> Decision | None:
        """Return how a message with retries left waits for the next one; None where it cannot."""

    def wait_ms(self, delivery: Delivery, run: int) -> int:
        """Return how many ms a message waited between its failed run of a number, from 1, and the next one."""
        del delivery, run
        return 0

    @abstractmethod
    def end(self, delivery: Delivery, failure: Failure, *, attempts: int) -> Decision:
        """Return the end of a message whose last run failed; `attempts` counts all runs that failed."""

    @abstractmethod
    def postpone(self, delivery: Delivery, seconds: float, *, exactly: bool = False) -> Decision:
        """Return the decision that lets a message wait: `exactly` for `seconds`, or at most that long."""

    def delay_queue(self, delay_ms: int) -> Queue | None:
        """Return the queue of one duration in ms, None if no message waits; raises ValueError for an invalid TTL."""
        del delay_ms
        return None

    def queue_of(self, routing_key: str) -> str:
        """Return the work queue of a waiting message, by its routing key."""
        return routing_key

    def replay_address(self, queue: str, routing_key: str) -> Address:
        """Return the replay address of a message of `queue` that was dead-lettered with `routing_key`."""
        del routing_key
        return Address("", queue)

    def replay_headers(self, headers: Mapping[str, Any], budget: ReplayBudget) -> dict[str, Any]:
        """Return the headers with which a dead letter is replayed."""
        return headers_for_replay(headers, budget)


@dataclass(frozen=True, slots=True)
class RetryPolicies:
    """The policies of an application, by queue."""

    by_queue: Mapping[str, Policy]
    default: Policy

    def policy_for(self, queue: str) -> Policy:
        """Return the policy of a queue."""
        return self.by_queue.get(queue, self.default)

    def __iter__(self) -> Iterator[Policy]:
        """Yield every policy once."""
        seen: list[Policy] = []
        for policy in (*self.by_queue.values(), self.default):
            if policy not in seen:
                seen.append(policy)
                yield policy

    def queues(self) -> list[Queue]:
        """Return every queue in which messages wait or end, each once."""
        return list({queue.name: queue for policy in self for queue in policy.queues()}.values())

    def work_queues(self) -> list[Queue]:
        """Return the work queues, for Celery's setting `task_queues`."""
        return [policy.work_queue(queue) for queue, policy in self.by_queue.items()]

    def dead_sets(self) -> dict[str, Policy]:
        """Return the dead sets by name, each with the first policy that dead-letters there."""
        return {policy.dead.name: policy for policy in reversed(list(self)) if policy.dead is not None}
