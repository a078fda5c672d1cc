"""What packers and searchers tell the orchestrator, as tasks, and the service that answers requests beside them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from app.broker.errors import WorkerMisconfigured
from app.broker.publishing import get_publisher
from app.broker.rpc.responder import Responder
from app.broker.worker.task import Task
from app.celery import app
from app.cluster.orchestrator.look import Stock
from app.cluster.orchestrator.service import OrchestratorService
from app.cluster.placement.values import Pack
from app.cluster.protocol import Outcome, Report, read, size_mb
from app.pack.manifest import Manifest, list_manifests, read_manifest
from app.serving import Service, serves
from app.storage.open import open_store
from config.routes import REQUESTS, ROUTE_BY_TASK
from config.settings import Settings, get_settings
from tasks.base import domain_of

_services: list[OrchestratorService] = []


@serves(REQUESTS)
def orchestrator(consumer: Any) -> Service:
    """Make the service of a worker; there is one in a process, and tasks that run in it share its state."""
    _services[:] = [build(get_settings(), every=partial(_every, consumer.timer))]
    return _services[0]


def build(
    settings: Settings, *, every: Callable[[float, Callable[[], None]], Callable[[], None]]
) -> OrchestratorService:
    """Put an orchestrator together; `every` as in app/cluster/orchestrator/service.py."""
    # Opened when it is looked at: an orchestrator whose store is away answers all the same.
    store = partial(open_store, settings.store, endpoint_url=settings.s3_endpoint_url)
    return OrchestratorService(
        replicas=settings.replicas,
        heartbeat=settings.heartbeat,
        stock=Stock(
            packs=lambda: [_pack(manifest) for manifest in list_manifests(store())],
            pack=lambda domain: _pack(read_manifest(store(), domain)),
        ),
        respond=partial(Responder, settings.broker),
        publish=get_publisher(settings.broker, timeout=settings.publish_timeout).publish,
        every=every,
    )


def _pack(manifest: Manifest) -> Pack:
    return Pack(
        domain=manifest.domain,
        sha256=manifest.sha256,
        generation=manifest.generation,
        size_mb=size_mb(manifest.uncompressed_size),
        pages=manifest.pages,
        built_at=manifest.built_at,
    )


def _every(timer: Any, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
    entry = timer.call_repeatedly(seconds, call)
    return lambda: timer.cancel(entry)


def _here() -> OrchestratorService:
    if not _services:
        raise WorkerMisconfigured("no orchestrator runs in this process")
    return _services[0]


def _task(name: str) -> Callable[[Callable[..., None]], Any]:
    route = ROUTE_BY_TASK[name]
    # Run in the worker's own process, which no limit of time could end.
    decorator: Callable[[Callable[..., None]], Any] = app.task(name=route.task, base=Task)
    return decorator


@_task("orchestrator.update")
def update(**message: Any) -> None:
    """Look what the store has of a domain; raises StoreError, and PackCorrupt for a manifest that cannot be read."""
    _here().updated(domain_of(message))


@_task("orchestrator.register")
def register(**message: Any) -> None:
    """Take what a searcher tells of itself."""
    _here().heard(read(Report, message))


@_task("orchestrator.loaded")
def loaded(**message: Any) -> None:
    """Take that a searcher answers from a version of a pack."""
    _here().done(read(Outcome, message))


@_task("orchestrator.unloaded")
def unloaded(**message: Any) -> None:
    """Take that a searcher forgot a version of a pack."""
    _here().done(read(Outcome, message))


@_task("orchestrator.failed")
def failed(**message: Any) -> None:
    """Take that a searcher could not do what it was told."""
    _here().failed(read(Outcome, message))
