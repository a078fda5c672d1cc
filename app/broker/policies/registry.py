"""Which policy answers for which queue and task, and all that they need on the broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kombu import Queue

from .base import Policy


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of an application. A task may differ from its queue, in numbers: `by_task` is by (queue, task)."""

    by_queue: Mapping[str, Policy]
    default: Policy
    by_task: Mapping[tuple[str, str], Policy] = field(default_factory=dict)

    def policy_for(self, queue: str, task: object = None) -> Policy:
        """Return the policy of a task on a queue; of a message that names no known task, that of its queue."""
        own = self.by_task.get((queue, task)) if isinstance(task, str) else None
        return own or self.by_queue.get(queue, self.default)

    def __iter__(self) -> Iterator[Policy]:
        """Yield every policy once."""
        seen: list[Policy] = []
        for policy in (*self.by_queue.values(), *self.by_task.values(), self.default):
            if policy not in seen:
                seen.append(policy)
                yield policy

    def queues(self) -> list[Queue]:
        """Return every queue that they wait and end in, each once."""
        return list({queue.name: queue for policy in self for queue in policy.queues()}.values())

    def work_queues(self) -> list[Queue]:
        """Return the work queues, as Celery's setting `task_queues` takes them."""
        return [policy.work_queue(queue) for queue, policy in self.by_queue.items()]

    def dead_sets(self) -> dict[str, Policy]:
        """Return the dead sets by name, each with the policy that buries there."""
        return {policy.dead.name: policy for policy in reversed(list(self)) if policy.dead is not None}
