"""The home page of operations and the overview of the API, which say whether everything is well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import Depends, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel

from app.operations.findings import Finding, findings, sentence
from app.operations.overview import Snapshot, as_json
from app.web.ops.requests import Reading, Subject, answer, calling, overview_of
from app.web.pages import templates
from app.web.paths import LIVE_PATH

subject = Subject()

#: The parts of the page that change while it is open: templates of `templates/ops/home/`, whose element has `live-`
#: and this name as its id.
_FRAGMENTS: Final = ("sentence", "findings", "figures", "crawls", "processes", "checks")


class OverviewAnswer(BaseModel):
    """Whether everything is well. A service that is away is a finding, and its figures are null."""

    well: bool
    sentence: str
    findings: Sequence[Finding]
    figures: dict[str, Any]


@subject.pages.get("", response_class=HTMLResponse)
def home(visit: Reading) -> HTMLResponse:
    """Show what an operator asks first."""
    parts = fragments(overview_of(visit.request).read())
    return visit.page("home.html", fragments=parts, live=LIVE_PATH)


def fragments(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the parts of the page as HTML by the id of their element."""
    found = findings(snapshot)
    values: dict[str, Any] = {"snapshot": snapshot, "findings": found, "sentence": sentence(found)}
    return {f"live-{name}": templates.get_template(f"ops/home/{name}.html").render(values) for name in _FRAGMENTS}


@subject.api.get("/overview", response_model=OverviewAnswer, operation_id="overview", dependencies=[Depends(calling)])
def overview(request: Request) -> Response:
    """Say whether everything is well, and what needs an operator."""
    snapshot = overview_of(request).read()
    needed = findings(snapshot)
    result = {"well": not needed, "sentence": sentence(needed), "findings": needed, "figures": as_json(snapshot)}
    return answer(result)
