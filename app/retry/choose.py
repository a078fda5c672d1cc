"""From a policy's name in config/routes.py to the policy."""

from __future__ import annotations

from app.retry.delay_queues import DelayQueues
from app.retry.drop import DropPolicy
from app.retry.policy import Policy
from config.routes import BY_TASK, POLICY_OF_QUEUE
from config.settings import Settings


def policy_for(task: object, queue: str, settings: Settings) -> Policy:
    """Return the policy of a task's route; of a message that names no known task, that of its queue."""
    route = BY_TASK.get(task) if isinstance(task, str) else None
    name = route.policy if route else POLICY_OF_QUEUE.get(queue, "delay_queues")
    if name == "drop":
        return DropPolicy()
    timeout_ms = route.retry_timeout_ms if route and route.retry_timeout_ms is not None else settings.retry_timeout_ms
    retry_max = route.retry_max if route and route.retry_max is not None else settings.retry_max
    return DelayQueues(timeout_ms=timeout_ms, retry_max=retry_max)
