"""The checks of `perennial doctor`: each states what was verified, and how, so that no message can be lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from typing import Any, Final, Literal

from amqp.exceptions import ChannelError, NotFound
from redis import RedisError

from app.broker.connection import connected
from app.broker.declaring import node_down
from app.broker.errors import BrokerUnreachable, ManagementFailed, ManagementRefused
from app.broker.publishing import Publisher
from app.cluster.client.cluster import ClusterSearchClient
from app.coverart import musicbrainz
from app.coverart.event_state import event_queue_state
from app.coverart.project import served_projects
from app.operations.doctor import probes
from app.operations.doctor.breaker_states import breaker_states
from app.operations.doctor.check import CheckContext, CheckResult, DoctorCheck, unverified
from app.operations.doctor.comparisons import (
    MAX_SKEW,
    REMEDY,
    clock_readings,
    cluster_results,
    consumer_timeout,
    dead_set_results,
    max_unacknowledged_seconds,
    worker_prefetches,
)
from app.operations.unreachable import unreachable_text
from app.processes.procfile import procfile
from app.redis_state.client import get_quick_redis
from app.storage.damage import DamageNotes
from app.storage.marker import MARKER_KEY, read_marker
from app.storage.open import check_conditional_writes, store_of
from app.text.humanize import MAX_NAMED, listed
from app.timers.timers import MAX_TICK_PAUSE, seconds_since_tick
from app.topology.check import check_topology, management_api
from app.topology.queues import task_queues
from app.topology.retry_policies import retry_policies
from config.routes import REQUESTS
from config.settings import Settings, misspelt_variables

#: The name of the check of MusicBrainz's event queue.
EVENT_QUEUE = "event queue"

_DAMAGE_REMEDY = (
    "copy them from a backup. Without one, write sites and timers again; the next crawl of a site repairs its pages, "
    "and damaged records of crawls are deleted by hand"
)


def run_checks(settings: Settings, checks: Sequence[DoctorCheck] | None = None) -> Iterator[CheckResult]:
    """Yield the results of checks, of all by default, in their order.

    Without a broker or Redis only those that need none run; without the broker's management API, those that need its
    report do not.
    """
    wanted = CHECKS if checks is None else checks
    of_broker = [check for check in wanted if check.needs in ("broker", "report")]
    if of_broker:
        try:
            yield from _broker_results(settings, of_broker)
        except BrokerUnreachable as error:
            yield CheckResult("problem", unreachable_text("RabbitMQ", error, settings), "broker")
    of_redis = [check for check in wanted if check.needs == "redis"]
    if of_redis:
        try:
            get_quick_redis(settings.redis).ping()
        except RedisError as error:
            yield CheckResult("problem", unreachable_text("Redis", error, settings), "redis")
            of_redis = []
    for check in (*of_redis, *(check for check in wanted if not check.needs)):
        yield from check.results(CheckContext(settings))


def outages(settings: Settings) -> Iterator[CheckResult]:
    """Yield the results of the checks of what workers wait for."""
    return run_checks(settings, [check for check in CHECKS if check.outage])


def quick_problems(settings: Settings) -> dict[str, list[str]]:
    """Return the problems that the quick checks find, by check."""
    problems: dict[str, list[str]] = {}
    for each in run_checks(settings, [check for check in CHECKS if check.quick]):
        if each.status == "problem":
            problems.setdefault(each.check, []).append(each.text)
    return problems


def _broker_results(settings: Settings, checks: Sequence[DoctorCheck]) -> Iterator[CheckResult]:
    report = None
    if any(check.needs == "report" for check in checks):
        try:
            report = check_topology(settings)
        except ManagementRefused as error:
            yield unverified(error, "topology")
        except ManagementFailed as error:
            yield CheckResult("problem", str(error), "topology")
    with closing(Publisher(settings.broker)) as publisher, connected(settings.broker) as connection:
        context = CheckContext(settings, connection, publisher, report)
        for check in checks:
            if report is not None or check.needs == "broker":
                yield from check.results(context)


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


def dead_sets(context: CheckContext) -> Iterator[CheckResult]:
    """Check that looking at a dead set changes nothing."""
    names = retry_policies(context.settings).dead_sets()
    queues = [queue for name, queue in context.found.items() if name in names]
    results = list(dead_set_results(queues, context.version))
    yield from results
    if not results:
        yield CheckResult("ok", "dead sets are classic queues: a look at a letter is not counted")


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
            yield CheckResult("problem", f"{times} ({source}); {consequence}; {REMEDY}")


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
        paused: set[str] = set()
        with suppress(RedisError):
            for breaker in breaker_states(context.settings):
                paused.update(breaker.queues if breaker.seconds_open else ())
        if idle := ", ".join(queue for queue in states["idle"] if queue not in paused):
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


def clocks(context: CheckContext) -> Iterator[CheckResult]:
    """Compare the clocks of Redis and the broker with this machine's."""
    readings = clock_readings(context.settings, context.connection)
    for reading in readings:
        if reading.is_skewed():
            yield CheckResult("warning", f"the clock of {reading}: log lines and dead letters differ; use NTP")
    compared = " and ".join(reading.owner for reading in readings if not reading.is_skewed())
    if compared:
        yield CheckResult("ok", f"the clock of {compared} is within {MAX_SKEW:g} s of this machine's")


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


def redis(context: CheckContext) -> Iterator[CheckResult]:
    """Check that timers and the frontier survive a restart of Redis and a full memory."""
    info: Any = get_quick_redis(context.settings.redis).info()
    if not info.get("aof_enabled"):
        yield CheckResult("warning", "Redis writes no append-only file: a restart loses timers and frontier")
    elif info.get("aof_last_write_status", "ok") != "ok":
        yield CheckResult("problem", f"Redis cannot write its append-only file: {info['aof_last_write_status']}")
    else:
        yield CheckResult("ok", "Redis writes an append-only file: timers and frontier survive a restart")
    if not info.get("maxmemory"):
        yield CheckResult(
            "warning",
            "Redis has no maxmemory: if it grows, the kernel ends a process of the machine. Set maxmemory, a quarter "
            "of the memory for instance, with maxmemory-policy noeviction: writers wait for a full Redis",
        )
    elif info.get("maxmemory_policy") != "noeviction":
        yield CheckResult(
            "problem", f"Redis evicts keys when its memory is full ({info['maxmemory_policy']}): use noeviction"
        )


def ticks(context: CheckContext) -> Iterator[CheckResult]:
    """Report when the last tick ran. It shows a beat or a worker that hangs, and so still looks as if it ran."""
    age = seconds_since_tick(get_quick_redis(context.settings.redis))
    if age is not None:
        yield CheckResult("ok", f"the last tick ran {age:.0f} s ago: timers and schedules work")
        return
    remedy = "are beat and a worker of site.tick running, and do they hang?"
    yield CheckResult("warning", f"no tick ran for {MAX_TICK_PAUSE} s, so no site is crawled or packed: {remedy}")


def circuit_breakers(context: CheckContext) -> Iterator[CheckResult]:
    """Report the services that workers wait for, and the error that opened each circuit breaker."""
    states = breaker_states(context.settings)
    unavailable = [state for state in states if state.is_open]
    yield from (CheckResult("problem", str(state)) for state in unavailable)
    if not unavailable:
        yield CheckResult("ok", f"no work waits for the {' or the '.join(state.service for state in states)}")


def musicbrainz_database(context: CheckContext) -> Iterator[CheckResult]:
    """Read MusicBrainz's database as jobs of each archive do; it must be the primary."""
    url = context.settings.musicbrainz_url.get_secret_value()
    if not url:
        yield CheckResult("ok", "MUSICBRAINZ_URL is empty, so no art is served")
        return
    with musicbrainz.connect(url, primary=True) as connection:
        for project in served_projects(context.settings).values():
            musicbrainz.entity(connection, project, musicbrainz.FIRST_GID)
        yield CheckResult("ok", "MusicBrainz's database answers, may be read, and is the primary")


def event_queue(context: CheckContext) -> Iterator[CheckResult]:
    """Report what waits, runs and failed in MusicBrainz's event queue, and whether its reader runs."""
    state = event_queue_state(context.settings)
    if state is None:
        yield CheckResult("ok", "ART_EVENT_QUEUE_URL is empty, so no events are read")
        return
    yield from (CheckResult("problem", text) for text in state.problems)
    yield from (CheckResult("warning", text) for text in state.warnings)
    if state.pooled:
        yield CheckResult(
            "warning",
            "ART_EVENT_QUEUE_URL leads through a pooler; in transaction mode it passes no notification on, and the "
            "event reader polls. Give the process eventreader a URL of the primary itself",
        )
    yield from (CheckResult("ok", f"events of the type {each.entity}: {each}") for each in state.entities)


def misspelt_settings(_: CheckContext) -> Iterator[CheckResult]:
    """Report variables of the environment that are probably meant as settings."""
    text = "; ".join(f"{name} is no setting: did you mean {meant}?" for name, meant in misspelt_variables().items())
    yield CheckResult("warning" if text else "ok", text or "no variable of this environment is a misspelt setting")


def store(context: CheckContext) -> Iterator[CheckResult]:
    """Try the store's conditional writes, and look for the marker that identifies it."""
    opened = store_of(context.settings)
    check_conditional_writes(opened)
    yield CheckResult("ok", "conditional writes work, also with concurrent writers: packs do not overwrite each other")
    yield _verified(
        bool(read_marker(opened)),
        f"it has its marker, {MARKER_KEY}",
        f"it has no marker ({MARKER_KEY}): an empty store, one that is not mounted, or another place. "
        "`perennial store create` writes one",
    )


def damaged_objects(context: CheckContext) -> Iterator[CheckResult]:
    """Report the objects that could not be read, and still have the same bytes."""
    keys = [
        each.key for each in DamageNotes(get_quick_redis(context.settings.redis)).present(store_of(context.settings))
    ]
    if keys:
        yield CheckResult("problem", f"damaged objects count as missing: {listed(keys)}; {_DAMAGE_REMEDY}")
    else:
        yield CheckResult("ok", "no damaged object was met, or all are repaired")


#: Every check, in the order of their results.
CHECKS: Final = (
    DoctorCheck("broker", broker, needs="broker", quick=True, outage=True),
    DoctorCheck("confirms", confirms, needs="broker"),
    DoctorCheck("waiting", waiting, needs="broker"),
    DoctorCheck("topology", topology, needs="report"),
    DoctorCheck("at-least-once", at_least_once, needs="report"),
    DoctorCheck("cluster", cluster, needs="report"),
    DoctorCheck("dead sets", dead_sets, needs="report"),
    DoctorCheck("consumer_timeout", acknowledgement_time, needs="broker"),
    DoctorCheck("work queues", work_queues, needs="broker", quick=True),
    DoctorCheck("clocks", clocks, needs="broker"),
    DoctorCheck("orchestrator", orchestrator, needs="broker"),
    DoctorCheck("redis", redis, needs="redis", quick=True),
    DoctorCheck("ticks", ticks, needs="redis"),
    DoctorCheck("circuit breakers", circuit_breakers, needs="redis", quick=True, outage=True),
    DoctorCheck("damaged objects", damaged_objects, needs="redis", quick=True),
    DoctorCheck("MusicBrainz", musicbrainz_database, outage=True),
    DoctorCheck(EVENT_QUEUE, event_queue, outage=True),
    DoctorCheck("store", store),
    DoctorCheck("settings", misspelt_settings),
)


def _verified(holds: bool, text: str, problem: str) -> CheckResult:
    return CheckResult("ok", text) if holds else CheckResult("problem", problem)
