"""No retry and no dead set: for messages that a clock sends again, or that are obsolete when they are late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kombu import Exchange, Queue

from ..delivery import Delivery
from .base import Address, Decision, Drop, Failure, ReplayBudget
from .delays import QueueType


@dataclass(frozen=True, slots=True)
class DropAll:
    """Drop every failed message. The work queue may limit how long a message waits, and how many wait."""

    message_ttl_ms: int | None = None
    max_length: int | None = None
    queue_type: QueueType = "classic"

    name: ClassVar[str] = "drop"
    replay_budget: ClassVar[ReplayBudget] = "fresh"
    rejects: ClassVar[bool] = False
    dead: ClassVar[None] = None

    def queues(self) -> list[Queue]:
        """Return an empty list."""
        return []

    def work_arguments(self, queue: str) -> dict[str, Any]:
        """Return the limits and the type of the queue, where they are not the broker's defaults."""
        del queue
        limits = {"x-message-ttl": self.message_ttl_ms, "x-max-length": self.max_length}
        arguments = {name: limit for name, limit in limits.items() if limit is not None}
        return arguments if self.queue_type == "classic" else {**arguments, "x-queue-type": self.queue_type}

    def work_queue(self, queue: str) -> Queue:
        """Return the queue, reached through the default exchange."""
        return Queue(
            queue, Exchange(""), routing_key=queue, durable=True, queue_arguments=self.work_arguments(queue) or None
        )

    def attempts(self, delivery: Delivery) -> int:
        """Return 0: no message runs twice."""
        del delivery
        return 0

    def retries(self, delivery: Delivery) -> int:
        """Return 0."""
        del delivery
        return 0

    def decide_before_run(self, delivery: Delivery) -> None:
        """Let every message run."""
        del delivery

    def decide(self, delivery: Delivery, failure: Failure) -> Decision:
        """Return Drop."""
        del delivery, failure
        return Drop()

    def postpone(self, delivery: Delivery, seconds: float, *, exactly: bool = False) -> Decision:
        """Return Drop: the next message comes before the wait would end."""
        del delivery, seconds, exactly
        return Drop()

    def replay_address(self, queue: str, routing_key: str) -> Address:
        """Return the queue itself, through the default exchange."""
        del routing_key
        return Address("", queue)

    def replay_headers(self, headers: Mapping[str, Any], budget: ReplayBudget) -> dict[str, Any]:
        """Return the headers unchanged: without a dead set there is no replay."""
        del budget
        return dict(headers)
