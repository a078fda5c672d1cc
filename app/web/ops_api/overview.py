"""The operators' API: whether everything is well, queues, searchers, timers, cover art and the audit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from app.broker.errors import ApplicationError, BrokerUnreachable, InvalidMessage, Overloaded
from app.cluster.protocol import Routes
from app.coverart.event_state import EventQueueState, EventRow, Requeued
from app.errors import (
    BodyRefused,
    OperatorRequired,
    ResourceNotFound,
    RoleRequired,
    SearchUnavailable,
    StoreError,
    TooManySearches,
    UriTooLong,
)
from app.operations import art, timers
from app.operations.art_audit import ArtAudit, read_audits
from app.operations.audit import AuditEntry
from app.operations.findings import findings, sentence
from app.operations.operations import Operations
from app.operations.overview import PATIENCE, as_json
from app.operations.queues import QueueFigures
from app.operations.workers import WorkerReport
from app.web.api import describe_errors
from app.web.middleware import OPS_API
from app.web.models import MAX_DOMAIN, StrictParameters
from app.web.ops.overviews import overview_of
from app.web.ops_api.callers import Calling, answer

#: Characters of the reason of an act.
MAX_WHY = 500
#: What any of these addresses may answer besides its result.
OPS_ERRORS = describe_errors(
    *(InvalidMessage, BodyRefused, UriTooLong, OperatorRequired, RoleRequired, ResourceNotFound, TooManySearches),
    *(ApplicationError, Overloaded, SearchUnavailable, BrokerUnreachable, StoreError),
)


class StrictBody(BaseModel):
    """The body of an act. An unknown field is refused: it may be a mistyped one."""

    model_config = {"extra": "forbid"}

    why: str = Field("", max_length=MAX_WHY, description="The reason, for the audit.")


class AuditParameters(StrictParameters):
    """Query parameters of the audit."""

    before: str = Field("", max_length=200, description="The `key` of the last entry that was read.")
    limit: int = Field(50, ge=1, le=500, description="Entries to answer with, at most.")


class TimerParameters(StrictParameters):
    """Query parameters of timers."""

    limit: int = Field(100, ge=1, le=1_000, description="Timers to answer with, at most, those that are due first.")


class FireBody(StrictBody):
    """A timer that is to be due now."""

    domain: str = Field(min_length=1, max_length=MAX_DOMAIN, examples=["docs.example.org"])


class RequeueBody(StrictBody):
    """Failed events of the event queue that are to be queued again."""

    events: list[Annotated[int, Field(ge=1, le=2**63 - 1)]] = Field(min_length=1, max_length=200)
    dry_run: bool = Field(False, description="Only check and list the events.")


class HandBackBody(StrictBody):
    """Running events of the event queue, for the indexer that takes it over."""

    dry_run: bool = Field(False, description="Only list the events.")


class ReindexBody(StrictBody):
    """Entities whose items are to be indexed again."""

    archive: str = Field(min_length=1, max_length=200, description="The exchange of the archive.")
    gids: list[Annotated[str, Field(max_length=36)]] = Field(min_length=1, max_length=art.MAX_GIDS)


class FindingAnswer(BaseModel):
    """One thing that needs an operator."""

    level: str = Field(description="`problem` or `warning`.")
    text: str
    remedy: str
    page: str = Field(description="The path of the page that helps, or empty.")


class OverviewAnswer(BaseModel):
    """Whether everything is well. A service that is away is a finding, and its figures are null."""

    well: bool
    sentence: str
    findings: Sequence[FindingAnswer]
    figures: dict[str, Any]


class QueuesAnswer(BaseModel):
    """All queues; `trouble` is why figures of the management API are missing."""

    queues: Sequence[QueueFigures]
    trouble: str


class WorkersAnswer(BaseModel):
    """All workers; `trouble` is why what they run is unknown, `asked_seconds_ago` the age of the answer."""

    workers: Sequence[WorkerReport]
    trouble: str
    asked_seconds_ago: float


class ArtAnswer(BaseModel):
    """Cover art: the archives, the event queue and the last audits. `trouble` is why the events are unknown."""

    archives: Sequence[str]
    events: EventQueueState | None
    failed: Sequence[EventRow]
    trouble: str
    audits: Sequence[ArtAudit]


class TimerAnswer(BaseModel):
    """A domain's timer."""

    domain: str
    due_in: float = Field(description="Seconds; negative when it is overdue.")
    queue: str
    message: dict[str, Any] = Field(description="What it publishes.")


class DoneAnswer(BaseModel):
    """What an act did."""

    done: Sequence[str]


router = APIRouter(prefix=OPS_API, responses=OPS_ERRORS)


@router.get("/overview", response_model=OverviewAnswer, operation_id="overview")
async def overview(request: Request, ops: Calling) -> Response:
    """Say whether everything is well, and what needs an operator."""
    del ops

    def found() -> dict[str, Any]:
        snapshot = overview_of(request).read()
        needed = findings(snapshot)
        return {
            "well": not needed,
            "sentence": sentence(needed),
            "findings": [asdict(each) for each in needed],
            "figures": as_json(snapshot),
        }

    return await answer(found)


@router.get("/queues", response_model=QueuesAnswer, operation_id="queues")
async def queues(request: Request, ops: Calling) -> Response:
    """List all queues with their figures."""
    del ops

    def found() -> dict[str, Any]:
        state = overview_of(request).queues.read(time.monotonic() + PATIENCE).required(BrokerUnreachable)
        return {"queues": [asdict(each) for each in state.queues], "trouble": state.trouble}

    return await answer(found)


@router.get("/workers", response_model=WorkersAnswer, operation_id="workers")
async def workers(request: Request, ops: Calling) -> Response:
    """List the workers: the tasks that each one runs now, its pool, queues and prefetch."""
    del ops

    def found() -> dict[str, Any]:
        # The queues' consumers come first, and then a silence of a worker that does not answer.
        reading = overview_of(request).workers.read(time.monotonic() + 2 * PATIENCE)
        state = reading.required(BrokerUnreachable)
        return {
            "workers": [asdict(each) for each in state.workers],
            "trouble": state.trouble,
            "asked_seconds_ago": round(reading.age, 1),
        }

    return await answer(found)


@router.get("/searchers", response_model=Routes, operation_id="searchers")
async def searchers(request: Request, ops: Calling) -> Response:
    """List the searchers, and the packs with the searchers that serve them."""
    del ops

    def found() -> dict[str, Any]:
        return asdict(overview_of(request).routes.read(time.monotonic() + PATIENCE).required(SearchUnavailable))

    return await answer(found)


@router.get("/timers", response_model=list[TimerAnswer], operation_id="timers")
async def list_timers(ops: Calling, parameters: Annotated[TimerParameters, Query()]) -> Response:
    """List the timers that are due first."""
    return await answer(
        lambda: [
            {
                "domain": domain,
                "due_in": timer.remaining,
                "queue": timer.callback.queue,
                "message": timer.callback.message,
            }
            for domain, timer in timers.read_timers(ops, limit=parameters.limit)
        ]
    )


@router.post("/timers/fire", response_model=DoneAnswer, operation_id="fire_timer")
async def fire_timer(ops: Calling, body: FireBody) -> Response:
    """Let a domain's timer be due now."""
    return await answer(lambda: {"done": [timers.fire(ops, body.domain, why=body.why)]})


@router.get("/art", response_model=ArtAnswer, operation_id="art")
async def show_art(ops: Calling) -> Response:
    """Report the event queue of cover art, its events that failed last, and the last audit of each archive."""

    def found() -> dict[str, Any]:
        archives = art.archives(ops)
        events = (art.read_events(ops) if archives else None) or art.EventReport()
        return {
            "archives": archives,
            "events": asdict(events.state) if events.state else None,
            "failed": [asdict(each) for each in events.failed],
            "trouble": events.trouble,
            "audits": [asdict(each) for each in read_audits(ops, archives).values()],
        }

    return await answer(found)


@router.post("/art/requeue", response_model=DoneAnswer, operation_id="requeue_events")
async def requeue_events(ops: Calling, body: RequeueBody) -> Response:
    """Queue failed events of cover art again, and list them in `done`."""
    return await answer(lambda: _ids(art.requeue(ops, body.events, dry_run=body.dry_run, why=body.why)))


@router.post("/art/pause", response_model=DoneAnswer, operation_id="pause_events")
async def pause_events(ops: Calling, body: StrictBody) -> Response:
    """Let the readers of the event queue publish no event. Jobs of published ones go on."""
    return await answer(lambda: _switched(art.pause_reader, ops, body.why, "paused"))


@router.post("/art/resume", response_model=DoneAnswer, operation_id="resume_events")
async def resume_events(ops: Calling, body: StrictBody) -> Response:
    """Let the readers of the event queue publish events again."""
    return await answer(lambda: _switched(art.resume_reader, ops, body.why, "resumed"))


@router.post("/art/handback", response_model=DoneAnswer, operation_id="hand_back_events")
async def hand_back_events(ops: Calling, body: HandBackBody) -> Response:
    """Queue running events again, for the indexer that takes the table over, and list them in `done`."""
    return await answer(lambda: _ids(art.hand_back(ops, dry_run=body.dry_run, why=body.why)))


def _switched(switch: Callable[..., None], ops: Operations, why: str, state: str) -> dict[str, Any]:
    switch(ops, why=why)
    return {"done": [state]}


def _ids(requeued: Requeued) -> dict[str, Any]:
    return {"done": [str(each) for each in requeued.ids]}


@router.post("/art/reindex", response_model=DoneAnswer, operation_id="reindex_art")
async def reindex_art(ops: Calling, body: ReindexBody) -> Response:
    """Enqueue `index` of entities, which writes their listing and metadata again."""
    return await answer(lambda: {"done": art.reindex(ops, body.archive, body.gids, why=body.why)})


@router.get("/audit", response_model=list[AuditEntry], operation_id="audit")
async def audit(ops: Calling, parameters: Annotated[AuditParameters, Query()]) -> Response:
    """List the acts of operators and the refusals, the latest first."""
    return await answer(
        lambda: [asdict(each) for each in islice(ops.audit.entries(before=parameters.before), parameters.limit)]
    )
