"""What a worker may be, by its queues: the only orchestrator, a searcher with a queue of its own, or one for tasks."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from typing import Any

from app.broker.connection import wait_for_exclusive_queue
from app.broker.errors import AlreadyRunning, WorkerMisconfigured
from app.topology.queues import searcher_queue
from config.routes import ORCHESTRATOR, REQUESTS, SEARCHER, searcher_of

#: The queue that only the orchestrator's connection can have; it goes with it.
LEASE = "orchestrator.lease"

_TOGETHER = frozenset((ORCHESTRATOR, REQUESTS))


def prepare(queues: Any) -> None:
    """Make Celery's queues ready for `--queues`, before they are chosen.

    `site.searcher` becomes another name of a queue that is this worker's own. A worker without `--queues` takes the
    work of tasks: it does not become the orchestrator by the way, nor a searcher.
    """
    queue = searcher_queue(str(uuid.uuid4()))
    queue.alias = SEARCHER
    queues.add(queue)
    queues.deselect(_TOGETHER)


def searcher_id(queues: Collection[str]) -> str | None:
    """Return the id of the searcher that takes one of these queues, or None."""
    return next((found for name in queues if (found := searcher_of(name))), None)


def given_names(queues: Collection[str]) -> dict[str, str]:
    """Return name -> name as it stands behind `--queues`."""
    return {name: SEARCHER if searcher_of(name) else name for name in queues}


def require_role(queues: Collection[str], *, solo: bool) -> None:
    """Raise NotWired for queues that a worker cannot serve so; `solo` says that its pool is."""
    orchestrates = _TOGETHER & set(queues)
    if orchestrates and orchestrates != _TOGETHER:
        raise WorkerMisconfigured(
            f"queue {', '.join(orchestrates)}: the orchestrator takes both of its queues; "
            f"start it with --queues={ORCHESTRATOR},{REQUESTS}"
        )
    special = orchestrates or ({SEARCHER} if searcher_id(queues) else set())
    if special and not solo:
        raise WorkerMisconfigured(
            f"queues {', '.join(sorted(special))}: what answers their requests lives in the worker's own process, "
            "where tasks have to run, too; start it with --pool=solo"
        )


def hold_lease(connection: Any, *, patience: float, meanwhile: Callable[[], None]) -> None:
    """Make this connection that of the only orchestrator; raises AlreadyRunning when another is there for so long.

    `patience` and `meanwhile` are those of `wait_for_exclusive_queue`.
    """

    def declare(channel: Any) -> None:
        channel.queue_declare(LEASE, durable=False, exclusive=True, auto_delete=False)

    if not wait_for_exclusive_queue(connection, declare, patience=patience, meanwhile=meanwhile):
        raise AlreadyRunning(
            f"another orchestrator runs on {connection.as_uri()}: there must be one only; it holds {LEASE}"
        )
