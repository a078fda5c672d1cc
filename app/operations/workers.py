"""What each worker does now: the tasks that it runs, its pool, its queues and its prefetch."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from app.broker.errors import ControlRefused
from app.broker.inspection import MAILBOX_ENDING, WorkerReply, inspect_workers
from app.messages.dead_sets import subject_of
from app.operations.queues import QueueReport
from app.topology.management_api import ConsumerStatistics
from config.settings import Settings

#: Tasks of one worker that are listed, those that run longest.
MAX_TASKS: Final = 50
#: Characters of a name.
_MAX_NAME: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTask:
    """A task that runs: what it is about, since when in seconds since the epoch, and in which process."""

    id: str
    name: str
    subject: str
    since: float | None
    pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """One worker; None means unknown. `running` has at most MAX_TASKS of its `task_count` tasks."""

    name: str
    answers: bool
    pool_size: int | None = None
    prefetch: int | None = None
    queues: Sequence[str] = ()
    running: Sequence[WorkerTask] = ()
    task_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersReport:
    """All workers, and the consumers of other processes. `trouble` is why the workers' tasks are unknown."""

    workers: Sequence[WorkerReport]
    others: Sequence[ConsumerStatistics] = ()
    trouble: str = ""


def read_workers(settings: Settings, queues: QueueReport | None, heartbeats: Collection[str]) -> WorkersReport:
    """Return what the workers do; raises BrokerUnreachable.

    A worker is expected to answer if its mailbox is among the consumers of `queues`, or, without these figures, if its
    heartbeat file is fresh.
    """
    consumers = queues.consumers if queues else ()
    mailboxes = {_worker_of(each): each.peer for each in consumers if _worker_of(each)}
    replies: dict[str, WorkerReply] = {}
    trouble = ""
    try:
        # Without these figures the names are unknown: only a silence ends the replies.
        replies = inspect_workers(settings.broker, mailboxes) if mailboxes or not consumers else {}
    except ControlRefused as error:
        trouble = str(error)
    names = {*(mailboxes or heartbeats), *replies}
    of_peer: dict[str, list[ConsumerStatistics]] = {}
    for each in consumers:
        of_peer.setdefault(each.peer or "unknown", []).append(each)
    return WorkersReport(
        workers=[_report(name, replies.get(name), of_peer.get(mailboxes.get(name, ""), ())) for name in sorted(names)],
        others=[each for each in consumers if each.peer not in mailboxes.values()],
        trouble=trouble,
    )


def _worker_of(consumer: ConsumerStatistics) -> str:
    """Return the name of the worker whose mailbox a consumer reads, empty for any other queue."""
    name = consumer.queue.removesuffix(MAILBOX_ENDING)
    return "" if name == consumer.queue or name.endswith(".reply") else name


def _report(name: str, reply: WorkerReply | None, consumers: Sequence[ConsumerStatistics]) -> WorkerReport:
    own = [each for each in consumers if not _worker_of(each)]
    prefetch = max((each.prefetch for each in own), default=None)
    queues = sorted({each.queue for each in own})
    if reply is None:
        return WorkerReport(name=name, answers=False, prefetch=prefetch, queues=queues)
    now = time.time()
    running = [
        WorkerTask(
            id=str(info.get("id", ""))[:_MAX_NAME],
            name=str(info.get("name", ""))[:_MAX_NAME],
            subject=subject_of([info.get("args"), info.get("kwargs")]),
            since=float(since) if isinstance(since := info.get("time_start"), int | float) else None,
            pid=info.get("worker_pid"),
        )
        for info in reply.tasks
    ]
    running.sort(key=lambda task: task.since or now)
    return WorkerReport(
        name=name,
        answers=True,
        pool_size=reply.pool_size,
        # The broker's figure holds where each consumer has a prefetch of its own.
        prefetch=prefetch if prefetch is not None else reply.prefetch,
        queues=queues or reply.queues,
        running=running[:MAX_TASKS],
        task_count=len(running),
    )
