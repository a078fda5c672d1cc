"""What needs an operator, from an overview: each finding names its subject, its remedy and the page that helps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from app.operations.doctor.breaker_states import seconds_paused
from app.operations.overview import Snapshot
from app.operations.queues import QueueFigures
from app.text.humanize import listed

Level = Literal["problem", "warning"]

#: Seconds that a timer may be overdue: ticks claim a hundred timers each second.
_OVERDUE: Final = 60.0
#: Messages, and messages a minute, from which a work queue that grows is worth a look.
_LONG, _GROWING = 1_000, 60.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that needs an operator. `remedy` may be empty, and so may `page`, the path of the page that helps."""

    level: Level
    text: str
    remedy: str = ""
    page: str = ""


def findings(snapshot: Snapshot) -> list[Finding]:
    """Return what needs an operator, problems first."""
    found = [
        *_services(snapshot),
        *_processes(snapshot),
        *_queues(snapshot),
        *_packs(snapshot),
        *_searchers(snapshot),
        *_checks(snapshot),
    ]
    return sorted(found, key=lambda finding: finding.level != "problem")


def sentence(found: list[Finding]) -> str:
    """Return the first line of the home page."""
    if not found:
        return "Everything is well."
    return "1 thing needs you." if len(found) == 1 else f"{len(found)} things need you."


def _services(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.queues.value is None:
        remedy = "start it, or check BROKER_URL; no message is lost meanwhile"
        yield Finding("problem", f"RabbitMQ is away: {snapshot.queues.trouble}", remedy)
    elif snapshot.queues.value.trouble:
        remedy = "set BROKER_API_URL; without it, rates and unacknowledged messages are unknown"
        yield Finding("warning", snapshot.queues.value.trouble.partition(": enable")[0], remedy, "/ops/queues")
    if snapshot.redis.value is None:
        remedy = "start it, or check REDIS_URL; crawls and timers wait, and go on by themselves"
        yield Finding("problem", f"Redis is away: {snapshot.redis.trouble}", remedy)
    elif snapshot.redis.value.packing_trouble:
        yield Finding("problem", snapshot.redis.value.packing_trouble, "is beat running, and a worker of site.tick?")
    if snapshot.store.value is None:
        remedy = "check STORE_URL and the store's server; work waits in the broker"
        yield Finding("problem", f"the store is away: {snapshot.store.trouble}", remedy)
    elif not snapshot.store.value:
        remedy = "is it mounted? perennial store create makes a new one"
        yield Finding("problem", "the store has no marker: it is empty, or another place", remedy)
    for breaker in snapshot.breakers.value or ():
        if breaker.is_open:
            yield Finding("problem", str(breaker), "it is tried again by itself", "/ops/art")


def _processes(snapshot: Snapshot) -> Iterator[Finding]:
    processes = snapshot.processes.value
    if processes is None:
        return
    for state in processes.states:
        if state.state in ("down", "restarting"):
            level: Level = "problem" if state.state == "down" else "warning"
            text = f"the process {state.name} is {state.state} after {state.crashes} crashes in a row"
            yield Finding(level, text, "its last log lines name the reason", "/ops/queues")
    for worker in processes.workers:
        if worker.is_silent:
            text = f"the worker {worker.name} has sent no heartbeat for {worker.age:.0f} s"
            yield Finding("warning", text, "was it stopped, or does it hang?", "/ops/queues")


def _queues(snapshot: Snapshot) -> Iterator[Finding]:
    report = snapshot.queues.value
    if report is None:
        return
    missing = [queue.name for queue in report.queues if queue.is_missing and queue.kind in ("work", "dead")]
    if missing:
        text = f"the broker has no queue {listed(missing)}"
        yield Finding("problem", text, "run perennial topology apply", "/ops/queues")
    work = [queue for queue in report.of_kind("work") if not queue.is_missing]
    # Workers do not consume while a service that the messages need is unavailable, which is a finding of its own.
    # Nor while one job tries it again.
    paused = seconds_paused(snapshot.breakers.value or ())
    idle = [queue for queue in work if not (queue.consumers or paused.get(queue.name))]
    busy = [queue for queue in idle if queue.ready]
    if busy:
        text = f"no worker consumes from {listed([_counted(queue) for queue in busy])}"
        yield Finding("problem", text, "start its process; the messages wait", "/ops/queues")
    elif idle:
        text = f"no worker consumes from {listed([queue.name for queue in idle])}"
        yield Finding("warning", text, "start its process before work comes", "/ops/queues")
    growing = [queue for queue in work if queue.ready >= _LONG and (queue.growth or 0) >= _GROWING]
    if growing:
        names = listed([f"{_counted(queue)}, {queue.growth:+,.0f} a minute" for queue in growing])
        yield Finding("warning", f"more arrives than is done: {names}", "start more workers", "/ops/queues")
    if dead := snapshot.dead_letters:
        text = f"{dead:,} dead letter{'' if dead == 1 else 's'}"
        yield Finding("warning", text, "read why, then replay or drop them", "/ops/dead")


def _packs(snapshot: Snapshot) -> Iterator[Finding]:
    timers = snapshot.redis.value.timers if snapshot.redis.value else ()
    overdue = [domain for domain, timer in timers if timer.remaining < -_OVERDUE]
    if overdue:
        text = f"timers are overdue: {listed(overdue)}"
        yield Finding("problem", text, "do beat and the workers of site.tick run?", "/ops/queues#timers")
    report = snapshot.queues.value
    is_packing = report is not None and any(
        queue.name == "site.pack" and (queue.ready or queue.unacknowledged) for queue in report.queues
    )
    late = list(snapshot.packs.value or ())
    if late and not is_packing:
        text = f"crawls ended, and have no pack yet: {listed(late)}"
        yield Finding("warning", text, "read the dead letters of site.pack, or pack the site again", "/ops/sites")


def _searchers(snapshot: Snapshot) -> Iterator[Finding]:
    routes = snapshot.routes.value
    if routes is None:
        text = f"the orchestrator is away: {snapshot.routes.trouble}"
        yield Finding("problem", text, "start it; searches go on along the last routes", "/ops/searchers")
        return
    if not routes.searchers:
        level: Level = "problem" if routes.routes else "warning"
        yield Finding(level, "no searcher is running", "start one", "/ops/searchers")
    unplaced = [route.domain for route in routes.routes if not route.searchers]
    if unplaced and routes.searchers and routes.ready:
        text = f"packs on no searcher: {listed(unplaced)}"
        yield Finding("problem", text, "the page of searchers has the reason", "/ops/searchers")
    short = [route.domain for route in routes.routes if route.searchers and route.missing and route.unplaced_reason]
    if short:
        text = f"packs with too few copies: {listed(short)}"
        yield Finding("warning", text, "the page of searchers has the reason", "/ops/searchers")


def _checks(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield the findings of the doctor, without those that the overview makes itself, with newer results."""
    values = {"broker": snapshot.queues.value, "redis": snapshot.redis.value, "store": snapshot.store.value}
    away = {name for name, value in values.items() if value is None}
    by_check: dict[tuple[str, Level], list[str]] = {}
    for line in snapshot.checks.value or ():
        is_known = line.check in ("circuit breakers", "ticks") or (
            line.check == "work queues" and line.status == "warning"
        )
        if line.status in ("problem", "warning") and line.check not in away and not is_known:
            level: Level = "problem" if line.status == "problem" else "warning"
            by_check.setdefault((line.check, level), []).append(line.text)
    for (check, level), texts in by_check.items():
        more = f"; and {len(texts) - 1} more below" if len(texts) > 1 else ""
        yield Finding(level, f"{check}: {texts[0]}{more}")


def _counted(queue: QueueFigures) -> str:
    return f"{queue.name} ({queue.ready:,} ready)"
