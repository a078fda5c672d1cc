"""The checks of `perennial doctor` about the broker, and what some of them compare."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import groupby
from typing import Literal

from amqp.exceptions import ChannelError, NotFound
from redis import RedisError

from app.broker.connection import connected
from app.broker.declaring import node_down
from app.broker.errors import BrokerUnreachable
from app.broker.worker.shared_process import MAX_WAIT
from app.cluster.client.cluster import ClusterSearchClient
from app.operations.doctor import probes
from app.operations.doctor.breaker_states import breaker_states, seconds_paused
from app.operations.doctor.check import CheckContext, CheckResult
from app.processes.procfile import procfile
from app.storage.marker import read_marker
from app.storage.open import store_of
from app.text.humanize import MAX_NAMED, listed
from app.topology.check import management_api
from app.topology.model import QueueDefinition
from app.topology.queues import task_queues
from app.topology.retry_policies import retry_policies
from config.routes import PREFETCH_MULTIPLIER, REQUESTS, ROUTES, SUBSCRIPTIONS, art_routes
from config.settings import Settings

#: A delivery limit that no number of looks reaches.
_MANY_LOOKS = 1_000_000

#: Members of a quorum queue that survive the loss of any one.
_MEMBERS = 3

#: Seconds until the broker closes the channel of a consumer that acknowledges nothing: RabbitMQ's default.
_CONSUMER_TIMEOUT = 1_800.0


def broker(context: CheckContext) -> Iterator[CheckResult]:
    """Check RabbitMQ's version."""
    version = context.version
    number = ".".join(map(str, version))
    if version < (3, 10) and context.settings.queue_type == "quorum":
        yield CheckResult("problem", f"RabbitMQ {number} has no at-least-once dead-lettering; use 3.10 or later")
    else:
        yield CheckResult("ok", f"{context.connection.as_uri()} answers: RabbitMQ {number}")


def confirms(context: CheckContext) -> Iterator[CheckResult]:
    """Publish to a queue, to no queue and to a full queue."""
    probes.publish_confirmed(context.connection, context.publisher)
    yield CheckResult("ok", "a message published to a queue was confirmed")
    yield _verified(
        probes.reports_unroutable(context.publisher),
        "publishing an unroutable message was an error",
        "an unroutable message was lost without an error",
    )
    yield _verified(
        probes.reports_full_queue(context.connection, context.publisher),
        "publishing to a full reject-publish queue was an error",
        "a full reject-publish queue dropped a message without an error",
    )


def waiting(context: CheckContext) -> Iterator[CheckResult]:
    """Let a message wait in a delay queue and come back."""
    queue_type = context.settings.queue_type
    returned, seconds = probes.delayed_return(context.connection, context.publisher, queue_type)
    yield _verified(
        returned,
        f"a message came back from a {queue_type} delay queue with its routing key after {seconds:.2f} s",
        "a message in a delay queue did not come back with its routing key",
    )


def topology(context: CheckContext) -> Iterator[CheckResult]:
    """Report what `perennial topology check` finds, dead-letter targets and alternate exchanges included."""
    errors = context.report.errors if context.report else []
    for finding in errors[:MAX_NAMED]:
        yield CheckResult("problem", f"{finding.subject}: {finding.problem}; {finding.remedy}")
    if len(errors) > MAX_NAMED:
        yield CheckResult("problem", f"and {len(errors) - MAX_NAMED} more: perennial topology check lists them")
    if not errors:
        yield CheckResult("ok", "exchanges, queues and bindings match the code; every dead-letter target is bound")


def at_least_once(context: CheckContext) -> Iterator[CheckResult]:
    """Check that the queues dead-letter at least once; the check of the topology compares the arguments for that."""
    queues = [queue for queue in context.found.values() if queue.dead_letter_exchange is not None]
    classic = [queue.name for queue in queues if queue.type != "quorum"]
    if classic:
        yield CheckResult(
            "warning",
            "classic queues, which lose a message if the broker dies while it dead-letters it: " + listed(classic),
        )
    elif queues:
        yield CheckResult("ok", f"{len(queues)} queues dead-letter at least once, and reject messages when full")


def cluster(context: CheckContext) -> Iterator[CheckResult]:
    """Report what stops while a node of the broker's cluster is down."""
    nodes = management_api(context.settings, context.connection).nodes()
    groups = [f"{name}." for name in context.settings.art_exchanges]
    yield from cluster_results([*context.found.values()], nodes, groups)
    if len(nodes) > 1 and context.settings.queue_type == "classic":
        yield CheckResult("warning", "QUEUE_TYPE is classic: all work waits for the node of its queue; use quorum")


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


def dead_sets(context: CheckContext) -> Iterator[CheckResult]:
    """Check that looking at a dead set changes nothing."""
    names = retry_policies(context.settings).dead_sets()
    queues = [queue for name, queue in context.found.items() if name in names]
    results = list(dead_set_results(queues, context.version))
    yield from results
    if not results:
        yield CheckResult("ok", "dead sets are classic queues: a look at a letter is not counted")


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


def acknowledgement_time(context: CheckContext) -> Iterator[CheckResult]:
    """Compare how long each worker can hold a message unacknowledged with the broker's consumer_timeout."""
    found = context.found
    for process, queues, multiplier in worker_prefetches(procfile()):
        longest = max_unacknowledged_seconds(queues, multiplier)
        limit, source = min(consumer_timeout(found.get(queue)) for queue in queues)
        times = f"{process}: a message is unacknowledged for at most {longest:g} s; the broker waits {limit:g} s"
        if longest < limit:
            yield CheckResult("ok", f"{times} ({source})")
        else:
            consequence = "then it closes the worker's channel and delivers its messages again"
            remedy = "raise consumer_timeout in rabbitmq.conf, or lower the time limits"
            yield CheckResult("problem", f"{times} ({source}); {consequence}; {remedy}")


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
    return _CONSUMER_TIMEOUT, "assumed: RabbitMQ's default, because a client cannot read rabbitmq.conf"


def work_queues(context: CheckContext) -> Iterator[CheckResult]:
    """Declare each work queue passively. RabbitMQ 3.10 can bring a quorum queue back that never answers."""
    findings = context.report.findings if context.report else ()
    reported = {finding.subject for finding in findings if finding.problem == "missing"}
    states: dict[str, list[str]] = {state: [] for state in ("idle", "busy", "down", "missing", "silent")}
    for queue in task_queues(context.settings):
        if f"queue {queue.name}" not in reported:
            states[_state_of(queue.name, context.settings)].append(queue.name)
    if down := ", ".join(states["down"]):
        yield CheckResult("problem", f"{down}: their node is down; start it, and delete no queue")
    if missing := ", ".join(states["missing"]):
        yield CheckResult("problem", f"the broker has no queue {missing}: run perennial topology apply")
    if silent := ", ".join(states["silent"]):
        remedy = "restart its node, or delete it and run perennial topology apply"
        yield CheckResult("problem", f"no answer from {silent}: {remedy}")
    if states["idle"]:
        # Workers do not consume while a service that the messages need is unavailable, which is a problem of its own.
        # While Redis is away, all idle queues are reported.
        paused: Mapping[str, float] = {}
        with suppress(RedisError):
            paused = seconds_paused(breaker_states(context.settings))
        if idle := ", ".join(queue for queue in states["idle"] if not paused.get(queue)):
            yield CheckResult("warning", f"no worker consumes from {idle} now")
    if answering := len(states["idle"]) + len(states["busy"]):
        yield CheckResult("ok", f"{answering} work queue(s) answer")


def _state_of(queue: str, settings: Settings) -> Literal["idle", "busy", "down", "missing", "silent"]:
    """Return whether a queue has consumers, or why it does not answer."""
    try:
        # A connection each: after a timeout, a connection cannot be used any more.
        with connected(settings.broker) as connection:
            return "busy" if connection.channel().queue_declare(queue, passive=True).consumer_count else "idle"
    except BrokerUnreachable as error:
        cause = error.__cause__ or error
        return "down" if node_down(cause) else "missing" if isinstance(cause, NotFound) else "silent"


def orchestrator(context: CheckContext) -> Iterator[CheckResult]:
    """Compare the store of STORE_URL with the one that the orchestrator reads."""
    try:
        with context.connection.channel() as channel:
            runs = channel.queue_declare(REQUESTS, passive=True).consumer_count > 0
    except ChannelError:
        runs = False
    if not runs:
        yield CheckResult("ok", "none runs now, so its store was not compared")
        return
    settings = context.settings
    ours = read_marker(store_of(settings))
    with closing(ClusterSearchClient.of(settings)) as client:
        theirs = client.routes().store_id
    yield _verified(
        not theirs or ours == theirs,
        "it reads the same store" if theirs else "it has not read a store yet",
        f"it reads another store ({theirs}) than STORE_URL ({ours or 'without marker'}): "
        "give all processes the same STORE_URL",
    )


def _verified(holds: bool, text: str, problem: str) -> CheckResult:
    return CheckResult("ok", text) if holds else CheckResult("problem", problem)
