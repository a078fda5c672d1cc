"""Cover art: events and jobs by state, failures with their reasons, and acts on the event queue and on items."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Annotated

from fastapi import Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

from app.coverart.event_state import ArtEventQueueState
from app.coverart.event_table import ArtEventRow
from app.operations import art
from app.operations.art import ArtAudit, read_audits
from app.operations.overview import PATIENCE
from app.web.ops.requests import ActBody, Calling, Done, DoneAnswer, Reading, Subject, answer, overview_of
from app.web.paths import OPS_PAGES

subject = Subject()


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


class ArtAnswer(BaseModel):
    """Cover art: the archives, the event queue and the last audits.

    `trouble` is why the events are unknown, and `audit_trouble` why audits are.
    """

    archives: Sequence[str]
    events: ArtEventQueueState | None
    failed: Sequence[ArtEventRow]
    trouble: str
    audits: Sequence[ArtAudit]
    audit_trouble: str


@subject.pages.get("/art", response_class=HTMLResponse)
def show(visit: Reading) -> HTMLResponse:
    """Show events and jobs, or that cover art is not served here."""
    overview = overview_of(visit.request)
    until = time.monotonic() + PATIENCE
    overview.breakers.start()
    exchanges = visit.ops.settings.art_exchanges
    queues = overview.queues.read(until)
    found = queues.value.queues if queues.value else ()
    by_archive = {name: [queue for queue in found if queue.name.startswith(f"{name}.")] for name in exchanges}
    audits, audit_trouble = read_audits(visit.ops, exchanges)
    return visit.page(
        "art.html",
        audits=audits,
        audit_trouble=audit_trouble,
        archives=by_archive,
        queues=queues,
        events=art.read_events(visit.ops) if exchanges else None,
        breakers=overview.breakers.read(until),
        most_gids=art.MAX_GIDS,
    )


@subject.api.get("/art", response_model=ArtAnswer, operation_id="art")
def show_art(ops: Calling) -> Response:
    """Report the event queue of cover art, its events that failed last, and the last audit of each archive."""
    archives = ops.settings.art_exchanges
    events = (art.read_events(ops) if archives else None) or art.ArtEventReport()
    audits, audit_trouble = read_audits(ops, archives)
    shown = {"events": events.state, "failed": events.failed, "trouble": events.trouble}
    return answer({"archives": archives, "audits": list(audits.values()), "audit_trouble": audit_trouble, **shown})


@subject.act("/art/requeue", response_model=DoneAnswer, operation_id="requeue_events")
def requeue_events(ops: Calling, body: RequeueBody) -> Done:
    """Queue failed events of cover art again, and list them in `done`."""
    requeued = art.requeue(ops, body.events, dry_run=body.dry_run, why=body.why)
    return _done(map(str, requeued.ids), f"{requeued}.")


@subject.act("/art/pause", response_model=DoneAnswer, operation_id="pause_events")
def pause_events(ops: Calling, body: ActBody) -> Done:
    """Let the readers of the event queue publish no event. Jobs of published ones go on."""
    art.steer_reader(ops, paused=True, why=body.why)
    return _done(["paused"], "The event reader is paused.")


@subject.act("/art/resume", response_model=DoneAnswer, operation_id="resume_events")
def resume_events(ops: Calling, body: ActBody) -> Done:
    """Let the readers of the event queue publish events again."""
    art.steer_reader(ops, paused=False, why=body.why)
    return _done(["resumed"], "The event reader is resumed.")


@subject.act("/art/handback", response_model=DoneAnswer, operation_id="hand_back_events")
def hand_back_events(ops: Calling, body: HandBackBody) -> Done:
    """Queue running events again, for the indexer that takes the table over, and list them in `done`."""
    requeued = art.hand_back(ops, dry_run=body.dry_run, why=body.why)
    planned = f"{len(requeued.ids):,} running events would be queued again."
    return _done(map(str, requeued.ids), planned if body.dry_run else f"{requeued}.")


@subject.act("/art/reindex", response_model=DoneAnswer, operation_id="reindex_art")
def reindex_art(ops: Calling, body: ReindexBody) -> Done:
    """Enqueue `index` of entities, which writes their listing and metadata again."""
    gids = art.reindex(ops, body.archive, body.gids, why=body.why)
    return _done(gids, f"index of {len(gids)} items enqueued.")


def _done(done: Iterable[str], note: str) -> Done:
    return Done({"done": list(done)}, f"{OPS_PAGES}/art", note)
