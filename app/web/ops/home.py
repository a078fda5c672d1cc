"""The home page of operations, which says whether everything is well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from app.operations.findings import findings, sentence
from app.operations.overview import Snapshot
from app.web.middleware import LIVE_PATH
from app.web.ops.overviews import overview_of
from app.web.ops.visits import Reading
from app.web.pages import templates

router = APIRouter()

#: The parts of the page that change while it is open: templates of `templates/ops/home/`, whose element has `live-`
#: and this name as its id.
_FRAGMENTS: Final = ("sentence", "findings", "figures", "crawls", "processes", "checks")


@router.get("", response_class=HTMLResponse)
def home(visit: Reading) -> HTMLResponse:
    """Show what an operator asks first."""
    parts = fragments(overview_of(visit.request).read())
    return visit.page("home.html", fragments=parts, live=LIVE_PATH)


def fragments(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the parts of the page as HTML by the id of their element."""
    found = findings(snapshot)
    values: dict[str, Any] = {"snapshot": snapshot, "findings": found, "sentence": sentence(found)}
    return {f"live-{name}": templates.get_template(f"ops/home/{name}.html").render(values) for name in _FRAGMENTS}
