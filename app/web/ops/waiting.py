"""Messages in delay queues: what waits, for how long and why, and acts that end a wait."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import Query, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import Field

from app.broker.delayed_messages import MAX_MOVED, MAX_PEEKED, DelayQueue, Moved
from app.broker.errors import BrokerUnreachable, QueueUnavailable
from app.operations.overview import PATIENCE
from app.operations.queues import QueueFigures
from app.operations.waiting import (
    PeekedQueue,
    delay_queue_named,
    end_wait,
    is_coalescing,
    read_waiting,
)
from app.topology.retry_policies import retry_policies
from app.web.models import StrictParameters
from app.web.ops.requests import ActBody, Calling, Done, Reading, Subject, Visit, answer, overview_of
from app.web.paths import OPS_PAGES

subject = Subject()

#: The name of a delay queue, of as many characters as AMQP 0-9-1 permits.
_QueueName = Annotated[
    str, Field(min_length=1, max_length=255, description="A delay queue.", examples=["site.delay.5000"])
]


class WaitingParameters(StrictParameters):
    """Query parameters of waiting messages."""

    queue: _QueueName


class EndBody(ActBody):
    """Messages whose wait is to end."""

    queue: _QueueName
    act: Literal["send", "dead"] = Field(description="To the work queue now, or to the dead set.")
    ids: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(
        [], max_length=1_000, description="Ids of messages."
    )
    every: bool = Field(False, description="All of the queue, in place of `ids`.")
    most: int = Field(5_000, ge=1, le=5_000, description="Messages to move with `every`, at most.")


@dataclass(frozen=True, slots=True)
class DelayQueueView:
    """One delay queue of the list; `seconds` is how long a message waits in it."""

    figures: QueueFigures
    seconds: float
    back_to: str
    is_coalescing: bool


@subject.pages.get("/waiting", response_class=HTMLResponse)
def show_waiting(visit: Reading, queue: str = "", task: str = "", domain: str = "") -> HTMLResponse:
    """Show all delay queues, and the messages of `queue`, if it is given; `task` and `domain` select messages."""
    return _page(visit, queue, task=task, domain=domain)


def _page(visit: Visit, queue: str = "", *, task: str = "", domain: str = "", fault: str = "") -> HTMLResponse:
    """Return the page, with the queue of its form, if this one was sent; `fault` is why it was refused."""
    queue = queue or visit.value("queue")
    reading = overview_of(visit.request).queues.read(time.monotonic() + PATIENCE)
    settings, rows = visit.ops.settings, []
    policies = retry_policies(settings)
    for figures in reading.value.of_kind("delay") if reading.value else ():
        found = DelayQueue.of(figures.name, policies) if figures.ready or figures.unacknowledged else None
        if found is not None:
            coalesces = is_coalescing(settings, figures.name)
            rows.append(DelayQueueView(figures, found.delay_ms / 1_000, found.back_to, coalesces))
    rows.sort(key=lambda row: (row.seconds, row.figures.name))
    values: dict[str, Any] = {"rows": rows, "reading": reading, "queue": queue}
    values |= {"task": task.strip(), "domain": domain.strip()}
    values |= {"opened": None, "peeked": None, "messages": [], "trouble": ""}
    values |= {"fault": fault, "why": visit.value("why")}
    if queue:
        values |= {"opened": delay_queue_named(settings, queue), "most": MAX_PEEKED, "most_moved": MAX_MOVED}
        try:
            peeked = read_waiting(visit.ops, queue)
        except (BrokerUnreachable, QueueUnavailable) as error:
            values["trouble"] = str(error)
        else:
            wanted = values["domain"].lower()
            of_task = (each for each in peeked.messages if values["task"] in each.task)
            shown = [each for each in of_task if wanted in (each.domain or each.subject)]
            values |= {"peeked": peeked, "messages": shown}
    return visit.page("waiting.html", status=400 if fault else 200, **values)


@subject.api.get("/waiting", response_model=PeekedQueue, operation_id="waiting")
def waiting(ops: Calling, parameters: Annotated[WaitingParameters, Query()]) -> Response:
    """List the first messages of a delay queue, as they were at most half a minute ago."""
    return answer(read_waiting(ops, parameters.queue))


@subject.act("/waiting/end", response_model=Moved, operation_id="end_wait", form=_page)
def end(request: Request, ops: Calling, body: EndBody) -> Done:
    """Send waiting messages to their work queues now, or to the dead set."""
    moved = end_wait(ops, body.queue, body.act, ids=None if body.every else body.ids, most=body.most, why=body.why)
    overview_of(request).queues.forget()
    target = "to the work queue" if body.act == "send" else "to the dead set"
    note = f"{moved.moved:,} sent {target}; {moved.left:,} wait in {body.queue}."
    if not body.every and moved.moved < len(body.ids):
        note += " The others had left before."
    if moved.failure:
        note += f" Not sent: {moved.failure}"
    return Done(moved, f"{OPS_PAGES}/waiting?{urlencode({'queue': body.queue})}", note)
