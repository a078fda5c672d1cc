"""The page of the audit: every act and every refusal, the latest first."""

from __future__ import annotations

from itertools import islice

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from app.web.ops.visits import Reading

router = APIRouter()

#: Entries of one page.
_PER_PAGE = 50


@router.get("/audit", response_class=HTMLResponse)
def audit(visit: Reading, before: str = "") -> HTMLResponse:
    """Show a page of entries; `before` is the key of the last entry of the page before."""
    found = list(islice(visit.ops.audit.entries(before=before), _PER_PAGE + 1))
    older = found[_PER_PAGE - 1].key if len(found) > _PER_PAGE else ""
    return visit.page("audit.html", entries=found[:_PER_PAGE], older=older, is_first=not before)
