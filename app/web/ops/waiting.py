"""Pages of delay queues: what waits, for how long and why, and forms that end a wait."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse

from app.broker.errors import BrokerUnreachable, InvalidMessage, QueueUnavailable
from app.broker.waiting import MAX_LOOK, MAX_MOVED, DelayQueue
from app.operations.overview import PATIENCE
from app.operations.queues import QueueFigures
from app.operations.waiting import (
    WaitingAct,
    WaitingMessage,
    delay_queue_named,
    end_wait,
    is_coalescing,
    read_waiting,
)
from app.topology.retry_policies import retry_policies
from app.web.middleware import OPS_PAGES
from app.web.ops.overviews import overview_of
from app.web.ops.visits import Acting, Reading, Visit

router = APIRouter()

_ACTS: dict[str, WaitingAct] = {"send": "send", "dead": "dead"}


@dataclass(frozen=True, slots=True)
class DelayQueueView:
    """One delay queue of the list; `seconds` is how long a message waits in it."""

    figures: QueueFigures
    seconds: float
    back_to: str
    is_coalescing: bool


@router.get("/waiting", response_class=HTMLResponse)
def waiting(visit: Reading, queue: str = "", task: str = "", domain: str = "") -> HTMLResponse:
    """Show all delay queues, and the messages of `queue`, if it is given; `task` and `domain` select messages."""
    reading = overview_of(visit.request).queues.read(time.monotonic() + PATIENCE)
    values: dict[str, Any] = {"reading": reading, "queue": queue, "task": task.strip(), "domain": domain.strip()}
    values |= {"rows": _rows(visit, reading.value.of_kind("delay") if reading.value else [])}
    values |= {"opened": None, "looked": None, "messages": [], "trouble": ""}
    if queue:
        values |= {"opened": delay_queue_named(visit.ops.settings, queue), "most": MAX_LOOK, "most_moved": MAX_MOVED}
        try:
            looked = read_waiting(visit.ops, queue)
        except (BrokerUnreachable, QueueUnavailable) as error:
            values["trouble"] = str(error)
        else:
            shown = [each for each in looked.messages if _matches(each, values["task"], values["domain"].lower())]
            values |= {"looked": looked, "messages": shown}
    return visit.page("waiting.html", **values)


@router.post("/waiting/end")
def end(visit: Acting) -> RedirectResponse:
    """Send chosen messages, or all of a queue, to the work queues now or to the dead set."""
    queue, act = visit.value("queue"), _ACTS.get(visit.value("act"))
    if act is None:
        raise InvalidMessage("act: expected send or dead")
    ids = None if visit.value("which") == "all" else list(visit.form.get("message", ()))
    moved = end_wait(visit.ops, queue, act, ids=ids, why=visit.value("why"))
    overview_of(visit.request).queues.forget()
    target = "to the work queue" if act == "send" else "to the dead set"
    note = f"{moved.moved:,} sent {target}; {moved.left:,} wait in {queue}."
    if ids is not None and moved.moved < len(ids):
        note += " The others had left before."
    if moved.failure:
        note += f" Not sent: {moved.failure}"
    return visit.back(f"{OPS_PAGES}/waiting?{urlencode({'queue': queue})}", note)


def _matches(message: WaitingMessage, task: str, domain: str) -> bool:
    return task in message.task and domain in (message.domain or message.subject)


def _rows(visit: Visit, queues: list[QueueFigures]) -> list[DelayQueueView]:
    """Return the delay queues with messages, the shortest wait first."""
    settings, rows = visit.ops.settings, []
    policies = retry_policies(settings)
    for figures in queues:
        place = DelayQueue.of(figures.name, policies) if figures.ready or figures.unacknowledged else None
        if place is not None:
            coalesces = is_coalescing(settings, figures.name)
            rows.append(DelayQueueView(figures, place.delay_ms / 1_000, place.back_to, coalesces))
    return sorted(rows, key=lambda row: (row.seconds, row.figures.name))
