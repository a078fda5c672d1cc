"""The home page of operations, which says whether everything is well."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from app.web.middleware import OPS_PAGES
from app.web.ops.visits import Reading

router = APIRouter(prefix=OPS_PAGES, include_in_schema=False)


@router.get("", response_class=HTMLResponse)
def home(visit: Reading) -> HTMLResponse:
    """Show what an operator asks first."""
    return visit.page("home.html")
