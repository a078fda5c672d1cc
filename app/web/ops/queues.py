"""The page of queues, the workers that consume from them, and the timers."""

from __future__ import annotations

import time
from collections.abc import Mapping

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse

from app.operations import timers
from app.operations.overview import PATIENCE, Overview
from app.web.middleware import LIVE_PATH, OPS_PAGES
from app.web.ops.overviews import overview_of
from app.web.ops.visits import Acting, Reading
from app.web.pages import templates

router = APIRouter()


@router.get("/queues", response_class=HTMLResponse)
def queues(visit: Reading) -> HTMLResponse:
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


@router.post("/timers/fire")
def fire(visit: Acting) -> RedirectResponse:
    """Let a timer be due now."""
    domain = timers.fire(visit.ops, visit.value("domain"), why=visit.value("why"))
    overview_of(visit.request).redis.forget()
    return visit.back(f"{OPS_PAGES}/queues#timers", f"The timer of {domain} is due now.")
