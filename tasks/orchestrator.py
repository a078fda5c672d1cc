"""The events that packers and searchers send to the orchestrator, as tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.broker.worker.task import Task
from app.celery import app
from app.cluster.orchestrator.worker import running_service
from app.cluster.protocol import Outcome, Report, read
from config.routes import ROUTE_BY_TASK
from tasks.base import domain_of


def _task(name: str) -> Callable[[Callable[..., None]], Any]:
    route = ROUTE_BY_TASK[name]
    # Run in the worker's own process, which no limit of time could end.
    decorator: Callable[[Callable[..., None]], Any] = app.task(name=route.task, base=Task)
    return decorator


@_task("orchestrator.update")
def update(**message: Any) -> None:
    """Look what the store has of a domain; raises StoreError, and PackCorrupt for a manifest that cannot be read."""
    running_service().pack_updated(domain_of(message))


@_task("orchestrator.register")
def register(**message: Any) -> None:
    """Take what a searcher tells of itself."""
    running_service().receive_report(read(Report, message))


@_task("orchestrator.loaded")
def loaded(**message: Any) -> None:
    """Take that a searcher answers from a version of a pack."""
    running_service().order_done(read(Outcome, message))


@_task("orchestrator.unloaded")
def unloaded(**message: Any) -> None:
    """Take that a searcher forgot a version of a pack."""
    running_service().order_done(read(Outcome, message))


@_task("orchestrator.failed")
def failed(**message: Any) -> None:
    """Take that a searcher could not do what it was told."""
    running_service().order_failed(read(Outcome, message))
