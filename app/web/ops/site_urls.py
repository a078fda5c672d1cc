"""The URLs of a site: those of its latest crawl by reason, one explained, broken links; and its searches."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, Final, Literal

from fastapi import Query, Response
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel, Field

from app.broker.errors import InvalidMessage
from app.crawl.record.entries import is_reason_code
from app.crawl.record.reasons import MEANINGS, Reason
from app.crawl.reports.crawl_report import MEDIA_TYPES, BrokenLink, Format, broken_links, export_urls
from app.crawl.reports.explanation import PastEntry
from app.crawl.urls import parse_domain
from app.operations import crawls
from app.operations.site_view import SiteSearches, searches
from app.sites.status import Status
from app.sites.status import status as status_of
from app.web.models import MAX_DOMAIN, StrictParameters
from app.web.ops.requests import NO_STORE, Calling, Domain, OfSite, PageNumber, Reading, Subject, Url, answer
from app.web.ops.site_page import site_path

subject = Subject()

#: Rows of one page, and entries of each table of a report of searches.
_PER_PAGE: Final = 100
_SHOWN_SEARCHES: Final = 100


class ExplainParameters(StrictParameters):
    """Query parameters of an explanation."""

    url: Url


class DomainParameters(StrictParameters):
    """Query parameters of what is said of one site."""

    domain: str = Field(
        min_length=1, max_length=MAX_DOMAIN, description="The site, as it was indexed.", examples=["docs.example.org"]
    )


class BrokenLinksParameters(DomainParameters):
    """Query parameters of broken links."""

    offset: int = Field(0, ge=0, le=100_000_000, description="Links to leave out at the beginning.")
    limit: int = Field(1_000, ge=1, le=10_000, description="Links to answer with, at most.")


class ExportParameters(DomainParameters):
    """Query parameters of an export."""

    format: Literal["jsonl", "csv"] = Field("jsonl", description="JSON Lines, or CSV with a line of names.")
    reason: str = Field("", max_length=200, description="Only URLs with this reason code, such as `noindex` or `404`.")


class ExplainedUrl(BaseModel):
    """The state of one URL."""

    url: str
    canonical: str
    domain: str
    stored: str = Field(description="What the store has of it, in words.")
    crawl: dict[str, str] | None = Field(description="The id of the latest crawl, and the states of its messages.")
    explanation: str = Field(description="Where its messages are, in words.")
    recorded: dict[str, Any] | None = Field(description="Its entry in the crawl's record.")
    reason: str | None = Field(description="Its reason code.")
    referrer: str | None = Field(description="The first page that links to it.")
    failures: dict[str, Any] | None = Field(description="Its failed attempts: `number`, `at` and `error`.")
    next_attempt: float | None = Field(description="Seconds since the epoch, if it waits for a retry.")


_EXPORTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {media_type: {"schema": {"type": "string"}} for media_type in MEDIA_TYPES.values()}}
}


class HistoryParameters(StrictParameters):
    """Query parameters of the history of a URL."""

    url: Url
    domain: OfSite = ""


@subject.pages.get("/sites/{domain}/urls", response_class=HTMLResponse)
def show_urls(visit: Reading, domain: str, reason: str = "", page: PageNumber = 1) -> HTMLResponse:
    """Show the URLs of the latest crawl, with a reason only those that have it."""
    if reason and not is_reason_code(reason):
        raise InvalidMessage(f"reason {reason[:80]!r}: no URL has this reason code")
    name = parse_domain(domain)
    report = crawls.latest(visit.ops, name)
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


@subject.pages.get("/url", response_class=HTMLResponse)
def show_url(visit: Reading, url: str = "", site: str = "") -> HTMLResponse:
    """Explain one URL, with its history; `site` is its site, if that is not its host."""
    values: dict[str, Any] = {"explained": None, "past": (), "meaning": "", "base": ""}
    if url.strip():
        explained = crawls.explain(visit.ops, url, site.strip())
        past = crawls.history(visit.ops, url, site.strip())
        code = explained.entry.code if explained.entry else ""
        values = {"explained": explained, "past": past, "meaning": _meaning(code), "base": site_path(explained.domain)}
    return visit.page("url.html", url=url, site=site, **values)


@subject.pages.get("/sites/{domain}/broken-links", response_class=HTMLResponse)
def show_broken_links(visit: Reading, domain: str, page: PageNumber = 1) -> HTMLResponse:
    """Show the broken links of the latest crawl, those of most pages first."""
    name = parse_domain(domain)
    found = broken_links(crawls.latest(visit.ops, name), visit.ops.store)
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


@subject.pages.get("/sites/{domain}/searches", response_class=HTMLResponse)
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


@subject.api.get("/explain", response_model=ExplainedUrl, operation_id="explain")
def explain(ops: Calling, parameters: Annotated[ExplainParameters, Query()]) -> Response:
    """Explain the state of one URL: its reason in the crawl, and what is stored of it."""
    return answer(crawls.explain(ops, parameters.url).as_json())


@subject.api.get("/status", response_model=Status, operation_id="status")
def status(ops: Calling, parameters: Annotated[DomainParameters, Query()]) -> Response:
    """Report a domain: pages, open messages, timer, pack, and its URLs by reason."""
    return answer(status_of(parameters.domain, settings=ops.settings))


@subject.api.get("/broken-links", response_model=list[BrokenLink], operation_id="broken_links")
def list_broken_links(ops: Calling, parameters: Annotated[BrokenLinksParameters, Query()]) -> Response:
    """List the broken links of a domain's latest crawl, and the pages that have them; those of most pages first."""
    links = broken_links(crawls.latest(ops, parameters.domain), ops.store)
    return answer(list(links.read(parameters.offset, parameters.limit)))


@subject.api.get("/urls", response_class=StreamingResponse, operation_id="urls", responses=_EXPORTS)
def urls(ops: Calling, parameters: Annotated[ExportParameters, Query()]) -> Response:
    """Export every URL of a domain's latest crawl with its reason, as JSON Lines or CSV."""
    form = Format(parameters.format)
    pieces = export_urls(crawls.latest(ops, parameters.domain), form, reason=parameters.reason)
    return StreamingResponse(pieces, media_type=MEDIA_TYPES[form], headers=NO_STORE)


@subject.api.get("/sites/{domain}/searches", response_model=SiteSearches, operation_id="site_searches")
def site_searches(ops: Calling, domain: Domain) -> Response:
    """Report searches without results, and clicks, of the last 30 days."""
    return answer(searches(ops, domain))


@subject.api.get("/history", response_model=list[PastEntry], operation_id="history")
def history(ops: Calling, parameters: Annotated[HistoryParameters, Query()]) -> Response:
    """Report what each of the last crawls recorded of one URL."""
    return answer(crawls.history(ops, parameters.url, parameters.domain))


def _meaning(code: str) -> str:
    return MEANINGS[Reason(code)] if code in set(Reason) else ""
