"""The operators' API: whether everything is well, queues, searchers, timers, cover art and the audit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field

from app.broker.errors import BrokerUnreachable
from app.cluster.protocol import Routes
from app.coverart.event_state import EventQueueState
from app.coverart.event_table import EventRow, Requeued
from app.errors import SearchUnavailable
from app.operations import art, timers
from app.operations.art_audit import ArtAudit, read_audits
from app.operations.audit import AuditEntry
from app.operations.findings import Finding, findings, sentence
from app.operations.overview import PATIENCE, as_json
from app.operations.queues import QueueFigures
from app.operations.workers import WorkerReport
from app.timers.timers import RunningTimer
from app.web.models import MAX_DOMAIN, StrictParameters
from app.web.ops.overviews import overview_of
from app.web.ops_api.callers import ActBody, Calling, answer, calling


class AuditParameters(StrictParameters):
    """Query parameters of the audit."""

    before: str = Field("", max_length=200, description="The `key` of the last entry that was read.")
    limit: int = Field(50, ge=1, le=500, description="Entries to answer with, at most.")


class TimerParameters(StrictParameters):
    """Query parameters of timers."""

    limit: int = Field(100, ge=1, le=1_000, description="Timers to answer with, at most, those that are due first.")


class FireBody(ActBody):
    """A timer that is to be due now."""

    domain: str = Field(min_length=1, max_length=MAX_DOMAIN, examples=["docs.example.org"])


class RequeueBody(ActBody):
    """Failed events of the event queue that are to be queued again."""

    events: list[Annotated[int, Field(ge=1, le=2**63 - 1)]] = Field(min_length=1, max_length=200)
    dry_run: bool = Field(False, description="Only check and list the events.")


class HandBackBody(ActBody):
    """Running events of the event queue, for the indexer that takes it over."""

    dry_run: bool = Field(False, description="Only list the events.")


class ReindexBody(ActBody):
    """Entities whose items are to be indexed again."""

    archive: str = Field(min_length=1, max_length=200, description="The exchange of the archive.")
    gids: list[Annotated[str, Field(max_length=36)]] = Field(min_length=1, max_length=art.MAX_GIDS)


class OverviewAnswer(BaseModel):
    """Whether everything is well. A service that is away is a finding, and its figures are null."""

    well: bool
    sentence: str
    findings: Sequence[Finding]
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


router = APIRouter()


@router.get("/overview", response_model=OverviewAnswer, operation_id="overview", dependencies=[Depends(calling)])
def overview(request: Request) -> Response:
    """Say whether everything is well, and what needs an operator."""
    snapshot = overview_of(request).read()
    needed = findings(snapshot)
    result = {"well": not needed, "sentence": sentence(needed), "findings": needed, "figures": as_json(snapshot)}
    return answer(result)


@router.get("/queues", response_model=QueuesAnswer, operation_id="queues", dependencies=[Depends(calling)])
def queues(request: Request) -> Response:
    """List all queues with their figures."""
    state = overview_of(request).queues.read(time.monotonic() + PATIENCE).required(BrokerUnreachable)
    return answer({"queues": state.queues, "trouble": state.trouble})


@router.get("/workers", response_model=WorkersAnswer, operation_id="workers", dependencies=[Depends(calling)])
def workers(request: Request) -> Response:
    """List the workers: the tasks that each one runs now, its pool, queues and prefetch."""
    # The queues' consumers come first, and then a silence of a worker that does not answer.
    reading = overview_of(request).workers.read(time.monotonic() + 2 * PATIENCE)
    state = reading.required(BrokerUnreachable)
    age = round(reading.age, 1)
    return answer({"workers": state.workers, "trouble": state.trouble, "asked_seconds_ago": age})


@router.get("/searchers", response_model=Routes, operation_id="searchers", dependencies=[Depends(calling)])
def searchers(request: Request) -> Response:
    """List the searchers, and the packs with the searchers that serve them."""
    return answer(overview_of(request).routes.read(time.monotonic() + PATIENCE).required(SearchUnavailable))


@router.get("/timers", response_model=list[TimerAnswer], operation_id="timers")
def list_timers(ops: Calling, parameters: Annotated[TimerParameters, Query()]) -> Response:
    """List the timers that are due first."""
    return answer([_timer(*each) for each in timers.read_timers(ops, limit=parameters.limit)])


@router.post("/timers/fire", response_model=DoneAnswer, operation_id="fire_timer")
def fire_timer(ops: Calling, body: FireBody) -> Response:
    """Let a domain's timer be due now."""
    return answer({"done": [timers.fire(ops, body.domain, why=body.why)]})


@router.get("/art", response_model=ArtAnswer, operation_id="art")
def show_art(ops: Calling) -> Response:
    """Report the event queue of cover art, its events that failed last, and the last audit of each archive."""
    archives = art.archives(ops)
    events = (art.read_events(ops) if archives else None) or art.EventReport()
    audits = list(read_audits(ops, archives).values())
    shown = {"events": events.state, "failed": events.failed, "trouble": events.trouble}
    return answer({"archives": archives, "audits": audits, **shown})


@router.post("/art/requeue", response_model=DoneAnswer, operation_id="requeue_events")
def requeue_events(ops: Calling, body: RequeueBody) -> Response:
    """Queue failed events of cover art again, and list them in `done`."""
    return _requeued(art.requeue(ops, body.events, dry_run=body.dry_run, why=body.why))


@router.post("/art/pause", response_model=DoneAnswer, operation_id="pause_events")
def pause_events(ops: Calling, body: ActBody) -> Response:
    """Let the readers of the event queue publish no event. Jobs of published ones go on."""
    art.steer_reader(ops, paused=True, why=body.why)
    return answer({"done": ["paused"]})


@router.post("/art/resume", response_model=DoneAnswer, operation_id="resume_events")
def resume_events(ops: Calling, body: ActBody) -> Response:
    """Let the readers of the event queue publish events again."""
    art.steer_reader(ops, paused=False, why=body.why)
    return answer({"done": ["resumed"]})


@router.post("/art/handback", response_model=DoneAnswer, operation_id="hand_back_events")
def hand_back_events(ops: Calling, body: HandBackBody) -> Response:
    """Queue running events again, for the indexer that takes the table over, and list them in `done`."""
    return _requeued(art.hand_back(ops, dry_run=body.dry_run, why=body.why))


@router.post("/art/reindex", response_model=DoneAnswer, operation_id="reindex_art")
def reindex_art(ops: Calling, body: ReindexBody) -> Response:
    """Enqueue `index` of entities, which writes their listing and metadata again."""
    return answer({"done": art.reindex(ops, body.archive, body.gids, why=body.why)})


@router.get("/audit", response_model=list[AuditEntry], operation_id="audit")
def audit(ops: Calling, parameters: Annotated[AuditParameters, Query()]) -> Response:
    """List the acts of operators and the refusals, the latest first."""
    return answer(list(islice(ops.audit.entries(before=parameters.before), parameters.limit)))


def _requeued(requeued: Requeued) -> Response:
    return answer({"done": [str(each) for each in requeued.ids]})


def _timer(domain: str, timer: RunningTimer) -> dict[str, Any]:
    callback = timer.callback
    return {"domain": domain, "due_in": timer.remaining, "queue": callback.queue, "message": callback.message}
