"""Long acts: how far one is, how it ended, and steps that pause, resume and cancel it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import Path, Response
from fastapi.responses import FileResponse, HTMLResponse

from app.broker.errors import BrokerUnreachable, DeadSetBusy
from app.errors import ResourceNotFound
from app.operations.context import OperatorContext
from app.operations.letters import DONE, export_file
from app.operations.long_acts import LongAct, LongActs, Steering
from app.web.ops.requests import ActBody, Calling, Done, Reading, Subject, Visit, answer
from app.web.pages import templates
from app.web.paths import LIVE_PATH, OPS_PAGES

subject = Subject()

ActIdent = Annotated[str, Path(max_length=80, description="The id of an act.")]

#: Seconds after which the page of a running act is loaded again where no script runs.
REFRESH: Final = 2


@subject.pages.get("/acts", response_class=HTMLResponse)
def show_acts(visit: Reading) -> HTMLResponse:
    """List the latest acts."""
    return visit.page("acts.html", acts=LongActs(visit.ops).recent(50))


@subject.pages.get("/acts/{ident}", response_class=HTMLResponse)
def show(visit: Reading, ident: str, still: bool = False) -> HTMLResponse:
    """Show an act. While it runs, the page follows it, unless it is to be `still`."""
    act = LongActs(visit.ops).read(ident)
    is_followed = act.is_running and not still
    parts = act_fragments(visit, act, is_followed=is_followed)
    verb = act.order.verb.capitalize()
    return visit.page("act.html", fragments=parts, verb=verb, phase=act.phase, refresh=REFRESH if is_followed else None)


def followed_act(visit: Visit, ident: str) -> Callable[[], Mapping[str, str]]:
    """Return a function that reads an act, and returns its parts as HTML."""
    # A token has its time in it: with one token, the parts differ only if the act does.
    acts, token = LongActs(visit.ops), visit.form_token

    def fragments() -> Mapping[str, str]:
        act = acts.read(ident)
        return act_fragments(visit, act, is_followed=act.is_running, form_token=token)

    return fragments


def act_fragments(visit: Visit, act: LongAct, *, is_followed: bool, form_token: str = "") -> Mapping[str, str]:
    """Return the page of an act as HTML by the id of its elements. The last one names the stream that follows it."""
    died_again = None
    if not act.is_running and act.done and act.order.verb != "drop":
        with suppress(DeadSetBusy, BrokerUnreachable):
            died_again = LongActs(visit.ops).died_again(act.id)
    values = {
        "operator": visit.ops.operator,
        "form_token": form_token or visit.form_token,
        "act": act,
        "text": described(act),
        "live": f"{LIVE_PATH}?act={act.id}" if is_followed else "",
        "died_again": died_again,
        "has_export": bool(act.export) and has_export(visit.ops, act.export),
    }
    # The stream ends with the part that names it, so that one is the last.
    names = {"live-act-steps": "steps", "live-act": "progress"}
    return {ident: templates.get_template(f"ops/act/{name}.html").render(values) for ident, name in names.items()}


@subject.pages.get("/dead/exports/{name}")
def download_export(visit: Reading, name: str) -> Response:
    """Send the file of an act that dropped letters on this host."""
    path = export_file(visit.ops, name)
    return FileResponse(path, media_type="application/jsonl", filename=name, headers={"Cache-Control": "no-store"})


def has_export(ops: OperatorContext, name: str) -> bool:
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


@subject.api.get("/acts", response_model=list[dict[str, Any]], operation_id="acts")
def list_acts(ops: Calling) -> Response:
    """List the latest acts on dead letters."""
    return answer([as_json(act) for act in LongActs(ops).recent(50)])


@subject.api.get("/acts/{ident}", response_model=dict[str, Any], operation_id="act")
def show_act(ops: Calling, ident: ActIdent) -> Response:
    """Return how far an act is."""
    return answer(as_json(LongActs(ops).read(ident)))


@subject.act("/acts/{ident}/{do}", response_model=dict[str, Any], operation_id="steer_act")
def steer_act(ops: Calling, ident: ActIdent, do: Steering, body: ActBody) -> Done:
    """Pause, resume or cancel an act. It is paused or cancelled after its present batch."""
    act = LongActs(ops).steer(ident, do, why=body.why)
    return Done(as_json(act), f"{OPS_PAGES}/acts/{act.id}")


def as_json(act: LongAct) -> dict[str, Any]:
    """Return an act as the API describes it."""
    return asdict(act) | {"running": act.is_running, "can_resume": act.can_resume}
