"""Queues, the workers that consume from them, and the timers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

from app.broker.errors import BrokerUnreachable
from app.operations import crawls
from app.operations.overview import PATIENCE, Overview
from app.operations.queues import QueueFigures
from app.operations.workers import WorkerReport
from app.timers.timers import Timers
from app.web.models import MAX_DOMAIN, StrictParameters
from app.web.ops.requests import ActBody, Calling, Done, DoneAnswer, Reading, Subject, answer, calling, overview_of
from app.web.pages import templates
from app.web.paths import LIVE_PATH, OPS_PAGES

subject = Subject()


class TimerParameters(StrictParameters):
    """Query parameters of timers."""

    limit: int = Field(100, ge=1, le=1_000, description="Timers to answer with, at most, those that are due first.")


class FireBody(ActBody):
    """A timer that is to be due now."""

    domain: str = Field(min_length=1, max_length=MAX_DOMAIN, examples=["docs.example.org"])


class QueuesAnswer(BaseModel):
    """All queues; `trouble` is why figures of the management API are missing."""

    queues: Sequence[QueueFigures]
    trouble: str


class WorkersAnswer(BaseModel):
    """All workers; `trouble` is why what they run is unknown, `inspected_seconds_ago` the age of the answer."""

    workers: Sequence[WorkerReport]
    trouble: str
    inspected_seconds_ago: float


class TimerAnswer(BaseModel):
    """A domain's timer."""

    domain: str
    due_in: float = Field(description="Seconds; negative when it is overdue.")
    queue: str
    message: dict[str, Any] = Field(description="What it publishes.")


@subject.pages.get("/queues", response_class=HTMLResponse)
def show_queues(visit: Reading) -> HTMLResponse:
    """Show the queues, workers and timers."""
    overview = overview_of(visit.request)
    until = time.monotonic() + PATIENCE
    for part in (overview.redis, overview.workers, overview.processes):
        part.start()
    return visit.page(
        "queues.html",
        queues=overview.queues.read(until),
        redis=overview.redis.read(until),
        fragments=worker_fragments(overview, until),
        live=f"{LIVE_PATH}?page=queues",
    )


def worker_fragments(overview: Overview, until: float) -> Mapping[str, str]:
    """Return the part of the page that says what the workers do, as HTML by the id of its element."""
    values = {"workers": overview.workers.read(until), "processes": overview.processes.read(until)}
    return {"live-workers": templates.get_template("ops/queues/workers.html").render(values)}


@subject.api.get("/queues", response_model=QueuesAnswer, operation_id="queues", dependencies=[Depends(calling)])
def queues(request: Request) -> Response:
    """List all queues with their figures."""
    state = overview_of(request).queues.read(time.monotonic() + PATIENCE).required(BrokerUnreachable)
    return answer({"queues": state.queues, "trouble": state.trouble})


@subject.api.get("/workers", response_model=WorkersAnswer, operation_id="workers", dependencies=[Depends(calling)])
def workers(request: Request) -> Response:
    """List the workers: the tasks that each one runs now, its pool, queues and prefetch."""
    # The queues' consumers come first, and then a silence of a worker that does not answer.
    reading = overview_of(request).workers.read(time.monotonic() + 2 * PATIENCE)
    state = reading.required(BrokerUnreachable)
    age = round(reading.age, 1)
    return answer({"workers": state.workers, "trouble": state.trouble, "inspected_seconds_ago": age})


@subject.api.get("/timers", response_model=list[TimerAnswer], operation_id="timers")
def list_timers(ops: Calling, parameters: Annotated[TimerParameters, Query()]) -> Response:
    """List the timers that are due first."""
    listed = [
        {"domain": domain, "due_in": each.remaining, "queue": each.callback.queue, "message": each.callback.message}
        for domain, each in Timers(ops.redis).first(parameters.limit)
    ]
    return answer(listed)


@subject.act("/timers/fire", response_model=DoneAnswer, operation_id="fire_timer")
def fire_timer(request: Request, ops: Calling, body: FireBody) -> Done:
    """Let a domain's timer be due now."""
    domain = crawls.fire_timer(ops, body.domain, why=body.why)
    overview_of(request).redis.forget()
    return Done({"done": [domain]}, f"{OPS_PAGES}/queues#timers", f"The timer of {domain} is due now.")
