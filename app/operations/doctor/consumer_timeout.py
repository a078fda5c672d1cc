"""`consumer_timeout`: how long a worker holds a message unacknowledged, and how long the broker tolerates it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from app.broker.worker.shared_process import MAX_WAIT
from app.topology.model import QueueDefinition
from config.routes import PREFETCH_MULTIPLIER, ROUTES, SUBSCRIPTIONS, art_routes

#: Seconds: RabbitMQ's default.
_DEFAULT = 1_800.0

REMEDY = "raise consumer_timeout in rabbitmq.conf, or lower the time limits"


def worker_prefetches(processes: Mapping[str, str]) -> Iterator[tuple[str, list[str], int]]:
    """Yield each Celery worker of a Procfile with its queues and its prefetch multiplier."""
    for name, command in processes.items():
        words = (word.partition("=") for word in shlex.split(command))
        options = {option: value for option, _, value in words}
        if "--queues" in options:
            yield name, options["--queues"].split(","), int(options.get("--prefetch-multiplier") or PREFETCH_MULTIPLIER)


def max_unacknowledged_seconds(queues: Sequence[str], multiplier: int) -> float:
    """Return the seconds until a worker finishes the last prefetched message, if all take their whole time limit.

    A worker prefetches `multiplier` messages of each of its queues for each of its pool processes. Those that share a
    process begin within MAX_WAIT seconds, together, and the first one of them may run a second time, alone.
    """
    shared = {route.queue for route in ROUTES if route.shares_process}
    return sum(
        MAX_WAIT + 2 * max_time_limit(queue) if queue in shared else float(multiplier * max_time_limit(queue))
        for queue in queues
    )


def max_time_limit(queue: str) -> int:
    """Return the longest time limit, in seconds, of a queue's tasks. An art archive's queue is known by its suffix."""
    art = [route.time_limit for route in art_routes("") if queue.endswith(route.queue)]
    return max([route.time_limit for route in (*ROUTES, *SUBSCRIPTIONS) if route.queue == queue] or art, default=0)


def consumer_timeout(queue: QueueDefinition | None) -> tuple[float, str]:
    """Return how many seconds the broker waits for an acknowledgement of a queue's consumers, and the source."""
    own = queue.option("consumer-timeout") if queue else None
    if queue and own is not None:
        return float(own) / 1_000, f"as {queue.name} or its policy says"
    return _DEFAULT, "assumed: RabbitMQ's default, because a client cannot read rabbitmq.conf"
