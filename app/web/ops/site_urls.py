"""Pages of the URLs of a site: those of its latest crawl by reason, one explained, broken links, searches."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from app.broker.errors import InvalidMessage
from app.crawl.record.entries import is_reason_code
from app.crawl.record.reasons import MEANINGS, Reason
from app.crawl.urls import parse_domain
from app.operations.site_view import searches
from app.web.ops.site_page import site_path
from app.web.ops.visits import Reading

router = APIRouter()

PageNumber = Annotated[int, Query(ge=1)]

#: Rows of one page, and entries of each table of a report of searches.
_PER_PAGE: Final = 100
_SHOWN_SEARCHES: Final = 100


@router.get("/sites/{domain}/urls", response_class=HTMLResponse)
def urls(visit: Reading, domain: str, reason: str = "", page: PageNumber = 1) -> HTMLResponse:
    """Show the URLs of the latest crawl, with a reason only those that have it."""
    if reason and not is_reason_code(reason):
        raise InvalidMessage(f"reason {reason[:80]!r}: no URL has this reason code")
    name = parse_domain(domain)
    report = visit.ops.reports.latest(name)
    # islice refuses larger numbers than an index has.
    first = min((page - 1) * _PER_PAGE, 10**12)
    found = list(islice(report.rows(reason, first=first), _PER_PAGE + 1))
    return visit.page(
        "site_urls.html",
        domain=name,
        base=site_path(name),
        totals=report.totals,
        record=report.record,
        rows=found[:_PER_PAGE],
        has_more=len(found) > _PER_PAGE,
        number=page,
        reason=reason,
        meaning=_meaning(reason),
    )


@router.get("/url", response_class=HTMLResponse)
def url(visit: Reading, url: str = "", site: str = "") -> HTMLResponse:
    """Explain one URL, with its history; `site` is its site, if that is not its host."""
    values: dict[str, Any] = {"explained": None, "past": (), "meaning": "", "base": ""}
    if url.strip():
        explained = visit.ops.reports.explain(url, site.strip())
        past = visit.ops.reports.history(url, site.strip())
        code = explained.entry.code if explained.entry else ""
        values = {"explained": explained, "past": past, "meaning": _meaning(code), "base": site_path(explained.domain)}
    return visit.page("url.html", url=url, site=site, **values)


@router.get("/sites/{domain}/broken-links", response_class=HTMLResponse)
def broken_links(visit: Reading, domain: str, page: PageNumber = 1) -> HTMLResponse:
    """Show the broken links of the latest crawl, those of most pages first."""
    name = parse_domain(domain)
    found = visit.ops.reports.broken_links(visit.ops.reports.latest(name))
    # Larger numbers are no index.
    first = min((page - 1) * _PER_PAGE, found.total)
    return visit.page(
        "site_broken.html",
        domain=name,
        base=site_path(name),
        total=found.total,
        links=list(found.read(first, _PER_PAGE)),
        has_more=found.total > first + _PER_PAGE,
        number=page,
    )


@router.get("/sites/{domain}/searches", response_class=HTMLResponse)
def show_searches(visit: Reading, domain: str) -> HTMLResponse:
    """Show searches without results, and clicks."""
    found = searches(visit.ops, domain)
    return visit.page(
        "site_searches.html",
        domain=found.domain,
        base=site_path(found.domain),
        found=found,
        queries=list(found.queries.items())[:_SHOWN_SEARCHES],
        clicked=found.clicked[:_SHOWN_SEARCHES],
    )


def _meaning(code: str) -> str:
    return MEANINGS[Reason(code)] if code in set(Reason) else ""
