"""Counts for search reports: the searches of the search page, and the clicks that its script reports."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.search.query import MAX_CHARACTERS
from app.sites.search_counter import SearchCounter
from app.web.middleware import CLICKS_PATH

router = APIRouter(include_in_schema=False)

_MAX_DOMAIN = 261
_MAX_URL = 4_000


@router.post(CLICKS_PATH, status_code=204)
async def count_click(
    request: Request,
    domain: Annotated[str, Query(max_length=_MAX_DOMAIN)],
    q: Annotated[str, Query(max_length=MAX_CHARACTERS)],
    url: Annotated[str, Query(max_length=_MAX_URL)],
) -> Response:
    """Count a click of the search page. The answer is always the same; other sites' pages count nothing."""
    counter: SearchCounter | None = request.app.state.search_counter
    # Browsers name the origin of a request (https://www.w3.org/TR/fetch-metadata/).
    if counter is not None and request.headers.get("Sec-Fetch-Site", "same-origin") == "same-origin":
        await run_in_threadpool(counter.count_click, domain, q, url)
    return Response(status_code=204)
