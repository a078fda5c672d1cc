"""The contract of a retry policy: it looks at a delivery and a failure and returns a decision. It does nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from kombu import Queue

from ..delivery import Delivery

#: Characters of a traceback, and of an error's message, that travel with a dead message.
MAX_TRACEBACK, MAX_MESSAGE = 6_000, 500

#: What a replayed message gets: `keep` is its spent budget, so that it dies at its next failure; `fresh` a new one.
Budget = Literal["keep", "fresh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why one run of a message failed. `at` is seconds since the epoch; everything is text, so that it can travel."""

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
    """Where a message is published to."""

    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class Retry:
    """Wait `delay_ms` in a queue, reached through its exchange, and run again; a run of the budget is spent."""

    queue: Queue
    routing_key: str
    delay_ms: int
    headers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reject:
    """Let the broker itself dead-letter the message to its retry queue, which holds it for `delay_ms`."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class Postponed:
    """Wait `delay_ms` in a queue, reached through its exchange, and run again; the budget is unspent."""

    queue: Queue
    routing_key: str
    delay_ms: int
    headers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dead:
    """Rest in a dead set, reached through its exchange, with these headers added."""

    queue: Queue
    routing_key: str
    headers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget the message: another one is coming anyway."""


Decision = Retry | Reject | Postponed | Dead | Drop


class Policy(Protocol):
    """One answer to "it failed", with the queues in which it waits and ends.

    A policy is a value: it holds names and numbers, and no connection. None of its methods raises, whatever headers a
    foreign producer sent.
    """

    #: The name by which tables and pictures speak of it.
    name: ClassVar[str]
    #: What a replay gets unless the operator says otherwise.
    replay_budget: ClassVar[Budget]
    #: Whether it may decide on Reject, so that its queues must have the dead-letter exchange of `work_arguments`.
    rejects: ClassVar[bool]

    @property
    def dead(self) -> Queue | None:
        """The dead set of this policy, bound to its exchange; None where nothing is ever buried."""

    def queues(self) -> Sequence[Queue]:
        """Return what must stand on the broker for it, with exchanges and bindings; the dead set comes first."""

    def work_arguments(self, queue: str) -> Mapping[str, Any]:
        """Return the arguments to declare a work queue with, so that the broker buries nothing silently."""

    def work_queue(self, queue: str) -> Queue:
        """Return a work queue, with those arguments, as Celery's setting `task_queues` takes it."""

    def attempts(self, delivery: Delivery) -> int:
        """Return how many runs of this message have failed before this delivery."""

    def retries(self, delivery: Delivery) -> int:
        """Return how many retries the budget of this message has in all."""

    def decide_before_run(self, delivery: Delivery) -> Decision | None:
        """Return what is to become of a message before it runs, or None: let it run."""

    def decide(self, delivery: Delivery, failure: Failure) -> Decision:
        """Return what becomes of a message whose run failed."""

    def postpone(self, delivery: Delivery, seconds: float, *, exactly: bool = False) -> Decision:
        """Return how a message waits for a while without having failed: `exactly`, or no longer than `seconds`."""

    def replay_address(self, queue: str, routing_key: str) -> Address:
        """Return where a message of `queue` that was buried with `routing_key` is published, to be run again."""

    def replay_headers(self, headers: Mapping[str, Any], budget: Budget) -> dict[str, Any]:
        """Return the headers with which a dead message is replayed."""
