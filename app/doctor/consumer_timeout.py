"""How long a worker may hold a message, and how long the broker waits for its acknowledgement: `consumer_timeout`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from app.topology.model import Queue
from config.routes import ROUTES, SUBSCRIPTIONS, art_routes
from config.settings import Settings

#: Seconds that a broker waits: RabbitMQ's default since 3.8.17, and that of 3.8.15 and 3.8.16.
_DEFAULT, _EARLY_DEFAULT = 1_800.0, 900.0

REMEDY = "raise consumer_timeout in rabbitmq.conf, or lower WORKER_PREFETCH or the time limits"


def worker_prefetches(processes: Mapping[str, str], prefetch: int) -> Iterator[tuple[str, list[str], int]]:
    """Yield each worker of a Procfile with its queues and its messages per pool process and queue."""
    for name, command in processes.items():
        queues = _option(command, "--queues")
        if queues is not None:
            yield name, queues.split(","), int(_option(command, "--prefetch-multiplier") or prefetch)


def max_unacknowledged_seconds(queues: Sequence[str], multiplier: int) -> float:
    """Return the seconds until a worker's last reserved message is done, if every one takes its whole time limit.

    A worker reserves `multiplier` messages of each of its queues for each of its pool processes.
    """
    return float(multiplier * sum(map(_longest, queues)))


def consumer_timeout(queue: Queue | None, settings: Settings, version: tuple[int, ...]) -> tuple[float, str]:
    """Return how long the broker waits for an acknowledgement from a queue's consumers, in seconds, and who says so."""
    own = queue.option("consumer-timeout") if queue else None
    if queue and own is not None:
        return float(own) / 1_000, f"as {queue.name} or its policy says"
    if not settings.broker_url.get_secret_value():
        return _private(settings), "as the private broker is configured"
    default = _EARLY_DEFAULT if (3, 8, 15) <= version < (3, 8, 17) else _DEFAULT
    return default, "assumed: RabbitMQ's default, for it does not tell what rabbitmq.conf says"


def _longest(queue: str) -> int:
    """Return the longest time limit of what a queue may hold; queues of an art archive are told by their last part."""
    art = [route.time_limit for route in art_routes("") if queue.endswith(route.queue)]
    return max([route.time_limit for route in (*ROUTES, *SUBSCRIPTIONS) if route.queue == queue] or art, default=0)


def _private(settings: Settings) -> float:
    """Return what the private broker's configuration says."""
    file = settings.services_file.parent / "rabbitmq" / "rabbitmq.conf"
    try:
        found = re.search(r"^consumer_timeout *= *(\d+)", file.read_text(), re.MULTILINE)
    except FileNotFoundError:
        found = None
    return float(found[1]) / 1_000 if found else _DEFAULT


def _option(command: str, name: str) -> str | None:
    """Return the value of `--option=value` in a command."""
    words = (word.partition("=") for word in shlex.split(command))
    return next((value for option, _, value in words if option == name), None)
