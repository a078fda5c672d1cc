"""The contract of a retry policy: a delivery and a failure go in, a decision comes out, and nothing else happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from kombu import Queue

from ..delivery import Delivery

#: Characters of a traceback, and of an error's message, that travel with a dead message.
MAX_TRACEBACK, MAX_MESSAGE = 6_000, 500

#: Budget of a replayed message: with `keep` its next failure dead-letters it, with `fresh` it has all its retries.
ReplayBudget = Literal["keep", "fresh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why one run of a message failed, as text that can be pickled. `at` is in seconds since the epoch."""

    reason: str
    exception: str
    message: str
    traceback: str = ""
    permanent: bool = False
    at: float = 0.0
    worker: str = ""
    task: str = ""

    def __str__(self) -> str:
        return f"{self.exception}: {self.message}"


@dataclass(frozen=True, slots=True)
class Address:
    """The exchange and routing key that a message is published to."""

    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class Retry:
    """Publish to the exchange of `queue`, wait there for `delay_ms`, and run again. Spends one retry."""

    queue: Queue
    routing_key: str
    delay_ms: int
    headers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reject:
    """Reject: the broker dead-letters the message to the retry queue `queue` for `delay_ms`. Spends one retry."""

    queue: Queue
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Postponed:
    """Publish to the exchange of `queue`, wait there for `delay_ms`, and run again. Spends nothing."""

    queue: Queue
    routing_key: str
    delay_ms: int
    headers: Mapping[str, Any] = field(default_factory=dict)


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


class Policy(Protocol):
    """Decides what happens to failed messages, and names the queues in which they wait and end.

    A policy is a value of names and numbers, without a connection. Its methods never raise, whatever headers a foreign
    producer sent.
    """

    #: Its name in tables and diagrams.
    name: ClassVar[str]
    #: The budget of a replay unless the operator chooses another.
    replay_budget: ClassVar[ReplayBudget]
    #: Whether it may decide Reject: its queues then need the dead-letter exchange of `work_arguments`.
    rejects: ClassVar[bool]

    @property
    def dead(self) -> Queue | None:
        """The dead set of this policy, bound to its exchange; None if it never dead-letters."""

    def queues(self) -> Sequence[Queue]:
        """Return the queues that it needs on the broker, with exchanges and bindings; the dead set comes first."""

    def work_arguments(self, queue: str) -> Mapping[str, Any]:
        """Return the arguments to declare a work queue with, so that the broker drops nothing silently."""

    def work_queue(self, queue: str) -> Queue:
        """Return a work queue with those arguments, for Celery's setting `task_queues`."""

    def attempts(self, delivery: Delivery) -> int:
        """Return how many runs of this message have failed before this delivery."""

    def retries(self, delivery: Delivery) -> int:
        """Return how many retries the budget of this message has in all."""

    def decide_before_run(self, delivery: Delivery) -> Decision | None:
        """Return None to let a message run, or the decision that replaces the run."""

    def decide(self, delivery: Delivery, failure: Failure) -> Decision:
        """Return the decision on a message whose run failed."""

    def postpone(self, delivery: Delivery, seconds: float, *, exactly: bool = False) -> Decision:
        """Return the decision that lets a message wait: `exactly` for `seconds`, or at most that long."""

    def replay_address(self, queue: str, routing_key: str) -> Address:
        """Return the replay address of a message of `queue` that was dead-lettered with `routing_key`."""

    def replay_headers(self, headers: Mapping[str, Any], budget: ReplayBudget) -> dict[str, Any]:
        """Return the headers with which a dead letter is replayed."""
