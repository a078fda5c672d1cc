"""The policies of an application by queue, and the queues that they need on the broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kombu import Queue

from .base import Policy


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
