"""Searchers: their disks, and the packs that each one serves."""

from __future__ import annotations

import time

from fastapi import Depends, Request, Response
from fastapi.responses import HTMLResponse

from app.cluster.protocol import Routes
from app.errors import SearchUnavailable
from app.operations.overview import PATIENCE
from app.operations.site_list import part_of_domain
from app.web.ops.requests import PageNumber, Reading, Subject, answer, calling, overview_of

subject = Subject()

#: Packs of one page.
_PER_PAGE = 100


@subject.pages.get("/searchers", response_class=HTMLResponse)
def show_searchers(visit: Reading, domain: str = "", page: PageNumber = 1) -> HTMLResponse:
    """Show the searchers, and a page of the packs whose domain contains `domain`, those with a fault first."""
    reading = overview_of(visit.request).routes.read(time.monotonic() + PATIENCE)
    packs = []
    if reading.value is not None:
        wanted = part_of_domain(domain)
        found = (route for route in reading.value.routes if wanted in route.domain)
        packs = sorted(found, key=lambda route: (bool(route.searchers), not route.missing, route.domain))
    end = page * _PER_PAGE
    return visit.page(
        "searchers.html",
        reading=reading,
        packs=packs[end - _PER_PAGE : end],
        total=len(packs),
        number=page,
        has_more=len(packs) > end,
        domain=domain,
    )


@subject.api.get("/searchers", response_model=Routes, operation_id="searchers", dependencies=[Depends(calling)])
def searchers(request: Request) -> Response:
    """List the searchers, and the packs with the searchers that serve them."""
    return answer(overview_of(request).routes.read(time.monotonic() + PATIENCE).required(SearchUnavailable))
