"""The tasks of the orchestrator: events of packers and searchers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.broker.worker.task import Task
from app.celery import app
from app.cluster.protocol import OrderOutcome, SearcherReport, read
from app.crawl.urls import parse_message_domain
from config.routes import ROUTE_BY_TASK

if TYPE_CHECKING:
    from app.cluster.orchestrator.service import OrchestratorService


def _task(name: str) -> Callable[[Callable[..., None]], Any]:
    route = ROUTE_BY_TASK[name]
    # The base task has no time limit: this one runs in the worker's own process, which a time limit could not end.
    decorator: Callable[[Callable[..., None]], Any] = app.task(name=route.task, base=Task)
    return decorator


def _service() -> OrchestratorService:
    # Imported here because every worker imports this module, and only the orchestrator's needs pika: 0.15 s of CPU.
    from app.cluster.orchestrator.worker import running_service

    return running_service()


@_task("orchestrator.update")
def update(**message: Any) -> None:
    """Read a domain's pack from the store again, in a thread: the event loop must not wait for the store."""
    _service().pack_updated(parse_message_domain(message))


@_task("orchestrator.register")
def register(**message: Any) -> None:
    """Receive a searcher's registration."""
    report = read(SearcherReport, message)
    _service().receive_report(replace(report, pack_versions=report.pack_versions or ()))


@_task("orchestrator.loaded")
def loaded(**message: Any) -> None:
    """Receive that a searcher loaded a version of a pack."""
    _service().receive_outcome(read(OrderOutcome, message))


@_task("orchestrator.unloaded")
def unloaded(**message: Any) -> None:
    """Receive that a searcher unloaded a version of a pack."""
    _service().receive_outcome(read(OrderOutcome, message))


@_task("orchestrator.failed")
def failed(**message: Any) -> None:
    """Receive that a searcher failed to execute an order."""
    outcome = read(OrderOutcome, message)
    _service().receive_outcome(replace(outcome, reason=outcome.reason or "no reason is given"))
