"""What must hold so that no message is lost: a list of checks, each of which says what was proven and how."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from celery.utils.imports import symbol_by_name
from redis import Redis, RedisError

from app.broker.connection import connected
from app.broker.errors import ApplicationError, BrokerUnreachable
from app.broker.publishing import Publisher
from app.broker.worker.consumer import Consumer
from app.doctor import probes as proofs
from app.doctor.consumer_timeout import REMEDY, consumer_timeout, max_unacknowledged_seconds, worker_prefetches
from app.services.procfile import procfile
from app.storage.open import check_conditional_writes, open_store
from app.topology.check import Report, check
from app.topology.model import Queue
from app.topology.queues import task_queues
from config.settings import Settings

#: `problem`: messages can be lost, or work cannot go on. `warning`: so in some case that is told. `ok`: proven.
Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Result:
    """What one check says."""

    status: Status
    told: str
    check: str = ""


@dataclass(frozen=True, slots=True)
class Patient:
    """What is looked at. `report` is a comparison of the topology, `celery` the application's configuration."""

    settings: Settings
    report: Report
    connection: Any
    publisher: Publisher
    celery: Any
    processes: Mapping[str, str]


Check = Callable[[Patient], Iterator[Result]]


def examine(settings: Settings, celery: Any) -> Iterator[Result]:
    """Yield the results of every check, in order. What a check raises is a problem that it found."""
    try:
        yield from _examine(settings, celery)
    except BrokerUnreachable as error:
        yield Result("problem", str(error), "broker")
        for name, look in WITHOUT_BROKER.items():
            yield from _results(name, look, settings)


def _examine(settings: Settings, celery: Any) -> Iterator[Result]:
    report = check(settings)
    publisher = Publisher(settings.broker, timeout=settings.publish_timeout)
    try:
        with connected(settings.broker, timeout=settings.publish_timeout) as connection:
            patient = Patient(settings, report, connection, publisher, celery, procfile())
            for name, look in CHECKS.items():
                yield from _results(name, look, patient)
    finally:
        publisher.close()
    for name, independent in WITHOUT_BROKER.items():
        yield from _results(name, independent, settings)


def _results(name: str, look: Callable[[Any], Iterator[Result]], subject: Any) -> Iterator[Result]:
    try:
        for result in look(subject):
            yield Result(result.status, result.told, name)
    except BrokerUnreachable:
        raise
    except (ApplicationError, RedisError, OSError) as error:
        yield Result("problem", f"{type(error).__name__}: {error}", name)


def broker(patient: Patient) -> Iterator[Result]:
    """Say which broker answers, and whether it can do what quorum queues are relied on for."""
    version = patient.report.version
    told = ".".join(map(str, version))
    if version < (3, 10) and patient.settings.queue_type == "quorum":
        yield Result("problem", f"RabbitMQ {told} has no at-least-once dead-lettering; 3.10 or later does")
    else:
        yield Result("ok", f"{patient.connection.as_uri()} answers: RabbitMQ {told}")


def confirms(patient: Patient) -> Iterator[Result]:
    """Publish to a queue, to none and to a full one."""
    proofs.confirmed(patient.connection, patient.publisher)
    yield Result("ok", "a message published to a queue was confirmed")
    yield _proof(
        proofs.unroutable_is_told(patient.publisher),
        "a message that no queue is bound for came back, and was an error",
        "a message that no queue is bound for was taken without a word",
    )
    yield _proof(
        proofs.full_is_told(patient.connection, patient.publisher),
        "a full reject-publish queue refused a message, and that was an error",
        "a full reject-publish queue dropped a message without a word",
    )


def waiting(patient: Patient) -> Iterator[Result]:
    """Let a message wait in a delay queue and come back."""
    came, seconds = proofs.comes_back(patient.connection, patient.publisher, patient.settings.queue_type)
    yield _proof(
        came,
        f"a message waited in a {patient.settings.queue_type} delay queue and came back by itself with its routing key "
        f"after {seconds:.2f} s",
        "a message in a delay queue did not come back with its routing key",
    )


def topology(patient: Patient) -> Iterator[Result]:
    """Give the comparison of `perennial topology check`: dead-letter targets and alternate exchanges are in it."""
    errors = patient.report.errors
    for finding in errors[:_FEW]:
        yield Result("problem", f"{finding.where}: {finding.what}; {finding.mend}")
    if len(errors) > _FEW:
        yield Result("problem", f"and {len(errors) - _FEW} more: perennial topology check lists them")
    if patient.report.unseen:
        yield Result("warning", patient.report.unseen)
    elif not errors:
        yield Result("ok", "exchanges, queues and bindings are as the code says; every dead-letter target is bound")


#: Findings that are told one by one.
_FEW = 5


def at_least_once(patient: Patient) -> Iterator[Result]:
    """Look on the broker whether queues that dead-letter do so at least once."""
    if patient.report.found is None:
        yield Result("warning", "not looked at on the broker: that needs BROKER_API_URL")
        return
    there = patient.report.found.queues
    ours = [there[name] for name in patient.report.ours.queues if name in there]
    ours = [queue for queue in ours if queue.dead_letter_exchange is not None]
    weak = [queue.name for queue in ours if queue.type != "quorum"]
    wrong = [queue.name for queue in ours if queue.type == "quorum" and not _safe(queue)]
    if weak:
        yield Result(
            "warning",
            f"classic, so that a message on its way to a dead-letter target is lost if the broker dies in that moment: "
            f"{_few(weak)}",
        )
    if wrong:
        yield Result("problem", f"no dead-letter-strategy at-least-once with overflow reject-publish: {_few(wrong)}")
    if ours and not weak and not wrong:
        yield Result("ok", f"{len(ours)} queues dead-letter at least once, and refuse what they cannot take")


def client_confirms(patient: Patient) -> Iterator[Result]:
    """Look whether a client's `delay()` is confirmed."""
    if patient.settings.client_confirms:
        yield Result("ok", "a client's delay() waits for the broker's confirm")
    else:
        yield Result("warning", "CLIENT_CONFIRMS is off: what delay() sent is lost if the broker dies before it has it")


def patience(patient: Patient) -> Iterator[Result]:
    """Compare how long a message can be unacknowledged with how long the broker waits."""
    there = patient.report.found.queues if patient.report.found else {}
    for process, queues, multiplier in worker_prefetches(patient.processes, patient.settings.worker_prefetch):
        longest = max_unacknowledged_seconds(queues, multiplier)
        waits = [consumer_timeout(there.get(queue), patient.settings, patient.report.version) for queue in queues]
        limit, how = min(waits)
        told = f"{process}: a message is unacknowledged for {longest:g} s at most, the broker waits {limit:g} s ({how})"
        if longest < limit:
            yield Result("ok", told)
        else:
            yield Result("problem", f"{told}: it would close the worker's channel and deliver again; {REMEDY}")


def answers(patient: Patient) -> Iterator[Result]:
    """Ask each work queue: RabbitMQ 3.10 can bring a quorum queue back dead after a kill."""
    missing = {finding.where for finding in patient.report.findings if finding.what == "missing"}
    idle, silent = [], []
    queues = (queue.name for queue in task_queues(patient.settings))
    names = [name for name in queues if f"queue {name}" not in missing]
    for name in names:
        try:
            # A connection each: one that waited in vain for an answer is of no more use.
            with connected(patient.settings.broker, timeout=patient.settings.publish_timeout) as connection:
                told = connection.channel().queue_declare(name, passive=True)
                idle += [] if told.consumer_count else [name]
        except BrokerUnreachable:
            silent.append(name)
    if silent:
        yield Result("problem", f"no answer from {', '.join(silent)}: restart its node, or delete it and apply")
    if idle:
        yield Result("warning", f"nobody works on {', '.join(idle)} now")
    if len(names) > len(silent):
        yield Result("ok", f"{len(names) - len(silent)} work queue(s) answer")


def workers(patient: Patient) -> Iterator[Result]:
    """Look at the settings of Celery that would acknowledge, requeue or hold what they must not."""
    conf = patient.celery
    ours = issubclass(symbol_by_name(conf.worker_consumer), Consumer)
    rules = {
        "task_acks_late must be on, or a worker that dies loses its messages": conf.task_acks_late,
        "task_reject_on_worker_lost must be off, or what kills a worker comes back for ever": not (
            conf.task_reject_on_worker_lost
        ),
        "worker_consumer must be app.retry's, or what cannot be decoded is acknowledged": ours,
        "accept_content must be JSON alone, or a message is code": list(conf.accept_content) == ["json"],
        "task_create_missing_queues must be off, or a mistyped queue is a new one": not conf.task_create_missing_queues,
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    yield from (Result("problem", rule) for rule in broken)
    if not broken:
        yield Result("ok", "late acknowledgement, app.retry's consumer, JSON only, no queue made by mistake")


def redis(settings: Settings) -> Iterator[Result]:
    """Ask whether timers and the frontier would survive a restart, and a full memory."""
    with Redis.from_url(settings.redis, socket_timeout=5, socket_connect_timeout=5) as client:
        told: Any = client.info()
    if not told.get("aof_enabled"):
        yield Result("warning", "Redis keeps no append-only file: a restart forgets timers and frontier")
    elif told.get("aof_last_write_status", "ok") != "ok":
        yield Result("problem", f"Redis cannot write its append-only file: {told['aof_last_write_status']}")
    else:
        yield Result("ok", "Redis writes an append-only file: timers and frontier survive a restart")
    if told.get("maxmemory") and told.get("maxmemory_policy") != "noeviction":
        yield Result(
            "problem", f"Redis evicts keys when its memory is full ({told['maxmemory_policy']}): use noeviction"
        )


def store(settings: Settings) -> Iterator[Result]:
    """Try the store's conditional writes."""
    check_conditional_writes(open_store(settings.store, endpoint_url=settings.s3_endpoint_url))
    yield Result("ok", "conditional writes hold, also by several writers at once: packs do not overwrite each other")


#: Every check, by name, in the order in which they are made.
CHECKS: Mapping[str, Check] = {
    "broker": broker,
    "confirms": confirms,
    "waiting": waiting,
    "topology": topology,
    "at-least-once": at_least_once,
    "client confirms": client_confirms,
    "consumer_timeout": patience,
    "work queues": answers,
    "workers": workers,
}

#: Those that need no broker.
WITHOUT_BROKER: Mapping[str, Callable[[Settings], Iterator[Result]]] = {"redis": redis, "store": store}


def _safe(queue: Queue) -> bool:
    return (queue.option("dead-letter-strategy"), queue.option("overflow")) == ("at-least-once", "reject-publish")


def _proof(holds: bool, told: str, otherwise: str) -> Result:
    return Result("ok", told) if holds else Result("problem", otherwise)


def _few(names: list[str]) -> str:
    return ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")
