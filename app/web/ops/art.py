"""The page of cover art: events and jobs by state, failures with their reasons, and forms to try again."""

from __future__ import annotations

import time
from collections.abc import Mapping

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse

from app.broker.errors import InvalidMessage
from app.errors import StoreError
from app.operations import art
from app.operations.art_audit import ArtAudit, read_audits
from app.operations.overview import PATIENCE
from app.web.middleware import OPS_PAGES
from app.web.ops.overviews import overview_of
from app.web.ops.visits import Acting, Reading

router = APIRouter()


@router.get("/art", response_class=HTMLResponse)
def show_art(visit: Reading) -> HTMLResponse:
    """Show events and jobs, or that cover art is not served here."""
    overview = overview_of(visit.request)
    until = time.monotonic() + PATIENCE
    overview.breakers.start()
    exchanges = art.archives(visit.ops)
    queues = overview.queues.read(until)
    found = queues.value.queues if queues.value else ()
    by_archive = {name: [queue for queue in found if queue.name.startswith(f"{name}.")] for name in exchanges}
    audits: Mapping[str, ArtAudit] = {}
    audit_trouble = ""
    try:
        audits = read_audits(visit.ops, exchanges)
    except StoreError as error:
        audit_trouble = str(error)
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


@router.post("/art/requeue")
def requeue(visit: Acting) -> RedirectResponse:
    """Queue chosen events again."""
    given = visit.form.get("event", ())
    if not all(each.isascii() and each.isdigit() and len(each) < 19 for each in given):
        raise InvalidMessage("event: expected the number of an event")
    if not given:
        raise InvalidMessage("choose at least one event")
    done = art.requeue(visit.ops, [int(each) for each in given], why=visit.value("why"))
    return visit.back(f"{OPS_PAGES}/art", f"{done}.")


@router.post("/art/reader")
def steer_reader(visit: Acting) -> RedirectResponse:
    """Pause the reader of events, or resume it."""
    act = visit.value("act")
    if act not in ("pause", "resume"):
        raise InvalidMessage("act: expected pause or resume")
    art.steer_reader(visit.ops, paused=act == "pause", why=visit.value("why"))
    return visit.back(f"{OPS_PAGES}/art", f"The event reader is {act}d.")


@router.post("/art/handback")
def hand_back(visit: Acting) -> RedirectResponse:
    """Queue running events again for another indexer, or only count them."""
    dry_run = visit.value("act") == "dry-handback"
    done = art.hand_back(visit.ops, dry_run=dry_run, why=visit.value("why"))
    note = f"{len(done.ids):,} running events would be queued again." if dry_run else f"{done}."
    return visit.back(f"{OPS_PAGES}/art", note)


@router.post("/art/reindex")
def reindex(visit: Acting) -> RedirectResponse:
    """Index items again."""
    gids = art.reindex(visit.ops, visit.value("archive"), visit.value("gids").split(), why=visit.value("why"))
    return visit.back(f"{OPS_PAGES}/art", f"index of {len(gids)} items enqueued.")
