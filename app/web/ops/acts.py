"""Pages of long acts: how far one is, how it ended, and forms to pause, resume and cancel it."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse, HTMLResponse

from app.broker.errors import BrokerUnreachable, DeadSetBusy, InvalidMessage
from app.errors import ResourceNotFound
from app.operations.letters import DONE, export_file
from app.operations.long_acts import LongAct, LongActs
from app.operations.operations import Operations
from app.web.middleware import OPS_PAGES
from app.web.ops.visits import Acting, Reading

router = APIRouter(prefix=OPS_PAGES, include_in_schema=False)

#: Seconds after which the page of a running act is loaded again.
REFRESH: Final = 2


@router.get("/acts", response_class=HTMLResponse)
def list_acts(visit: Reading) -> HTMLResponse:
    """List the latest acts."""
    return visit.page("acts.html", acts=LongActs(visit.ops).recent(50))


@router.get("/acts/{ident}", response_class=HTMLResponse)
def show_act(visit: Reading, ident: str, still: bool = False) -> HTMLResponse:
    """Show an act. While it runs, the page is loaded again and again, unless it is to be `still`."""
    acts = LongActs(visit.ops)
    act = acts.read(ident)
    died_again: int | None = None
    if not act.is_running and act.done and act.order.verb != "drop":
        try:
            died_again = acts.died_again(ident)
        except (DeadSetBusy, BrokerUnreachable):
            died_again = None
    page = visit.page(
        "act.html",
        act=act,
        text=described(act),
        reloads=act.is_running and not still,
        died_again=died_again,
        has_export=bool(act.export) and has_export(visit.ops, act.export),
    )
    if act.is_running and not still:
        # Every browser knows this field; it has no script and no element.
        page.headers["Refresh"] = str(REFRESH)
    return page


@router.post("/acts/{ident}")
def steer_act(visit: Acting, ident: str) -> Response:
    """Pause, resume or cancel an act."""
    acts, why = LongActs(visit.ops), visit.value("why")
    match visit.value("do"):
        case "pause":
            acts.steer(ident, "paused", why=why)
        case "cancel":
            acts.steer(ident, "cancelled", why=why)
        case "resume":
            acts.resume(ident, why=why)
        case other:
            raise InvalidMessage(f"do {other[:40]!r}: expected pause, resume or cancel")
    return visit.back(f"{OPS_PAGES}/acts/{ident}")


@router.get("/dead/exports/{name}")
def download_export(visit: Reading, name: str) -> Response:
    """Send the file of an act that dropped letters on this host."""
    path = export_file(visit.ops, name)
    return FileResponse(path, media_type="application/jsonl", filename=name, headers={"Cache-Control": "no-store"})


def has_export(ops: Operations, name: str) -> bool:
    """Return whether this host has the file of letters that an act dropped."""
    try:
        export_file(ops, name)
    except ResourceNotFound:
        return False
    return True


def described(act: LongAct) -> str:
    """Return in a sentence how far an act is."""
    done = f"{act.done:,} of {act.total:,} {DONE[act.order.verb]}"
    others = "the others are in the dead set" if act.left else "no letter is left to do"
    match act.phase:
        case "running":
            return f"{done} so far" if not act.note else f"{done} so far; waiting: {act.note}"
        case "done":
            return f"{done}; {act.left:,} stayed in the dead set" if act.left else done
        case "stopped":
            return f"stopped: {done}; {others}. The reason: {act.note}"
        case "interrupted":
            return f"interrupted: {done}; {act.note or others}. The process that worked on it ended"
        case phase:
            return f"{phase}: {done}; {others}"
