"""What checks compare: nodes and queues of a cluster, acknowledgements with consumer_timeout, and clocks."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from app.broker.worker.shared_process import MAX_WAIT
from app.operations.doctor.check import CheckResult
from app.redis_state.client import get_quick_redis
from app.topology.check import management_api
from app.topology.model import QueueDefinition
from config.routes import PREFETCH_MULTIPLIER, ROUTES, SUBSCRIPTIONS, art_routes
from config.settings import Settings

# A cluster: what stays in service while one of its nodes is down, from its definitions alone

#: A delivery limit that no number of looks reaches.
_MANY_LOOKS = 1_000_000

#: Members of a quorum queue that survive the loss of any one.
_MEMBERS = 3


def dead_set_results(dead_sets: Sequence[QueueDefinition], version: tuple[int, ...]) -> Iterator[CheckResult]:
    """Yield a result for each dead set that a default queue type of the vhost made a quorum queue."""
    for queue in dead_sets:
        if queue.type != "quorum":
            continue
        limit = queue.option("delivery-limit")
        drops = (version >= (4,) and limit is None) or (limit is not None and 0 <= limit < _MANY_LOOKS)
        yield CheckResult(
            "problem" if drops else "warning",
            f"{queue.name} is a quorum queue, by the vhost's default_queue_type: each look at a letter counts as a "
            + (
                f"delivery, and the broker drops it after {20 if limit is None else limit}; set a policy with "
                "delivery-limit = -1 for it"
                if drops
                else "delivery, without a limit"
            ),
        )


def cluster_results(
    queues: Sequence[QueueDefinition], nodes: Mapping[str, bool], groups: Sequence[str]
) -> Iterator[CheckResult]:
    """Yield the results of a cluster; `nodes` has whether each runs.

    `groups` are the prefixes of classic queues of which the broker moves messages from one to another.
    """
    if len(nodes) == 1:
        yield CheckResult("ok", "one node: while it is down, all messages wait in it")
        return
    down = sorted(name for name, runs in nodes.items() if not runs)
    if down:
        yield CheckResult("problem", f"{len(down)} of {len(nodes)} nodes are down: {', '.join(down)}; start them again")
    if len(nodes) == 2:
        yield CheckResult("warning", "two nodes: quorum queues stop with either of them; add a third node")
    replicated = [queue for queue in queues if queue.type == "quorum"]
    few = [queue.name for queue in replicated if len(queue.replicas.members) < min(_MEMBERS, len(nodes))]
    if few:
        remedy = 'rabbitmq-queues grow NODE "all", with each node that lacks members'
        yield CheckResult("warning", f"{len(few)} quorum queues have too few members, such as {few[0]}: {remedy}")
    for group in groups:
        homes = sorted({node for queue in queues if queue.name.startswith(group) for node in queue.replicas.members})
        if len(homes) > 1:
            yield CheckResult(
                "warning",
                f"the classic queues of {group} are on {', '.join(homes)}: what expires in one while the node of the "
                "next is down is dropped by the broker; have them all on one node",
            )
    single = sorted((queue for queue in queues if queue.type != "quorum"), key=lambda queue: queue.replicas.members)
    waits = "; ".join(
        f"{', '.join(queue.name for queue in alike)} for {', '.join(members) or 'an unknown node'}"
        for members, alike in groupby(single, key=lambda queue: queue.replicas.members)
    )
    yield CheckResult(
        "ok",
        f"{len(replicated)} queues have members on several nodes"
        + (f"; classic queues wait: {waits}" if waits else ""),
    )


# `consumer_timeout`: how long a worker holds a message unacknowledged, and how long the broker tolerates it

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


# Clocks of Redis and the broker, compared with that of this machine

#: Seconds of difference that are reported. The broker's `Date` has no fractions of a second.
MAX_SKEW = 2.0


@dataclass(frozen=True, slots=True)
class ClockReading:
    """How far the clock of `owner` is ahead of this machine's, give or take `error`, both in seconds."""

    owner: str
    ahead: float
    error: float

    def is_skewed(self) -> bool:
        """Return whether the difference is certainly more than MAX_SKEW."""
        return abs(self.ahead) - self.error > MAX_SKEW

    def __str__(self) -> str:
        side = "ahead of" if self.ahead > 0 else "behind"
        return f"{self.owner} {abs(self.ahead):.1f} s {side} this machine"


def read_clock(
    owner: str, read: Callable[[], float], *, resolution: float = 0.0, now: Callable[[], float] = time.time
) -> ClockReading:
    """Read a clock, in seconds since the epoch, whose values are rounded down to `resolution` seconds.

    The reading is somewhere between the request and the answer.
    """
    before = now()
    seconds = read()
    after = now()
    ahead = seconds + resolution / 2 - (before + after) / 2
    return ClockReading(owner, ahead, (after - before + resolution) / 2)


def clock_readings(settings: Settings, connection: Any, *, now: Callable[[], float] = time.time) -> list[ClockReading]:
    """Return the readings of Redis and, with BROKER_API_URL, of the broker. Raises RedisError and ManagementFailed."""

    def redis_time() -> float:
        seconds, micros = client.time()
        return seconds + micros / 1e6

    client = get_quick_redis(settings.redis)
    client.ping()
    readings = [read_clock("Redis", redis_time, now=now)]
    if settings.broker_api:
        api = management_api(settings, connection)
        readings.append(read_clock("the broker", api.clock, resolution=1.0, now=now))
    return readings
