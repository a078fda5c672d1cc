"""No retry and no dead set: for messages that a clock sends again, or that are obsolete when they are late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from kombu import Queue

from ..delivery import Delivery
from ..failure import Failure
from .base import Drop, Policy
from .delays import QueueType


@dataclass(frozen=True, slots=True)
class DropAll(Policy):
    """Drop every failed message. The work queue may limit how long a message waits, and how many wait."""

    message_ttl_ms: int | None = None
    max_length: int | None = None
    queue_type: QueueType = "classic"

    name: ClassVar[str] = "drop"

    @property
    def dead(self) -> None:
        """Return None: nothing is kept."""

    def queues(self) -> list[Queue]:
        """Return an empty list."""
        return []

    def work_arguments(self) -> dict[str, Any]:
        """Return the limits and the type of the queue, where they are not the broker's defaults."""
        limits = {"x-message-ttl": self.message_ttl_ms, "x-max-length": self.max_length}
        arguments = {name: limit for name, limit in limits.items() if limit is not None}
        return arguments if self.queue_type == "classic" else {**arguments, "x-queue-type": self.queue_type}

    def attempts(self, delivery: Delivery) -> int:
        """Return 0: no message runs twice."""
        del delivery
        return 0

    def retries(self, delivery: Delivery) -> int:
        """Return 0."""
        del delivery
        return 0

    def decide_before_run(self, delivery: Delivery, *, task: str = "", worker: str = "") -> None:
        """Let every message run."""
        del delivery, task, worker

    def retry_after(self, delivery: Delivery, failure: Failure) -> None:
        """Return None."""
        del delivery, failure

    def end(self, delivery: Delivery, failure: Failure, *, attempts: int) -> Drop:
        """Return Drop."""
        del delivery, failure, attempts
        return Drop()

    def postpone(self, delivery: Delivery, seconds: float, *, exactly: bool = False) -> Drop:
        """Return Drop: the next message comes before the wait would end."""
        del delivery, seconds, exactly
        return Drop()
