"""The checks of `perennial doctor`: each states what was verified, and how, so that no message can be lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from redis import RedisError

from app.broker.connection import connected
from app.broker.errors import BrokerUnreachable, ManagementFailed, ManagementRefused
from app.broker.publishing import Publisher
from app.coverart import musicbrainz
from app.coverart.event_state import event_queue_state
from app.coverart.project import served_projects
from app.operations.doctor import broker_checks
from app.operations.doctor.breaker_states import breaker_states
from app.operations.doctor.check import CheckContext, CheckResult, DoctorCheck, unverified
from app.operations.unreachable import unreachable_text
from app.redis_state.client import get_quick_redis
from app.storage.damage import DamageNotes
from app.storage.marker import MARKER_KEY, read_marker
from app.storage.open import check_conditional_writes, store_of
from app.text.humanize import listed
from app.timers.timers import MAX_TICK_PAUSE, seconds_since_tick
from app.topology.check import check_topology, management_api
from config.settings import Settings, misspelt_variables

#: Seconds of difference that are reported. The broker's `Date` has no fractions of a second.
MAX_SKEW = 2.0

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


def clocks(context: CheckContext) -> Iterator[CheckResult]:
    """Compare the clocks of Redis and the broker with this machine's."""
    readings = clock_readings(context.settings, context.connection)
    for reading in readings:
        if reading.is_skewed():
            yield CheckResult("warning", f"the clock of {reading}: log lines and dead letters differ; use NTP")
    compared = " and ".join(reading.owner for reading in readings if not reading.is_skewed())
    if compared:
        yield CheckResult("ok", f"the clock of {compared} is within {MAX_SKEW:g} s of this machine's")


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
    if read_marker(opened):
        yield CheckResult("ok", f"it has its marker, {MARKER_KEY}")
    else:
        cause = "an empty store, one that is not mounted, or another place"
        yield CheckResult("problem", f"it has no marker ({MARKER_KEY}): {cause}. `perennial store create` writes one")


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
    DoctorCheck("broker", broker_checks.broker, needs="broker", quick=True, outage=True),
    DoctorCheck("confirms", broker_checks.confirms, needs="broker"),
    DoctorCheck("waiting", broker_checks.waiting, needs="broker"),
    DoctorCheck("topology", broker_checks.topology, needs="report"),
    DoctorCheck("at-least-once", broker_checks.at_least_once, needs="report"),
    DoctorCheck("cluster", broker_checks.cluster, needs="report"),
    DoctorCheck("dead sets", broker_checks.dead_sets, needs="report"),
    DoctorCheck("consumer_timeout", broker_checks.acknowledgement_time, needs="broker"),
    DoctorCheck("work queues", broker_checks.work_queues, needs="broker", quick=True),
    DoctorCheck("clocks", clocks, needs="broker"),
    DoctorCheck("orchestrator", broker_checks.orchestrator, needs="broker"),
    DoctorCheck("redis", redis, needs="redis", quick=True),
    DoctorCheck("ticks", ticks, needs="redis"),
    DoctorCheck("circuit breakers", circuit_breakers, needs="redis", quick=True, outage=True),
    DoctorCheck("damaged objects", damaged_objects, needs="redis", quick=True),
    DoctorCheck("MusicBrainz", musicbrainz_database, outage=True),
    DoctorCheck(EVENT_QUEUE, event_queue, outage=True),
    DoctorCheck("store", store),
    DoctorCheck("settings", misspelt_settings),
)
