"""The operators' API: states and reasons of the URLs of a site's latest crawl."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from app.crawl.reports.crawl_report import BrokenLink
from app.crawl.reports.url_export import MEDIA_TYPES, Format, export_urls
from app.sites.status import Status
from app.web.models import MAX_DOMAIN, StrictParameters
from app.web.ops_api.callers import NO_STORE, Calling, answer


class ExplainParameters(StrictParameters):
    """Query parameters of an explanation."""

    url: str = Field(min_length=1, max_length=2_000, description="A page.", examples=["https://docs.example.org/a"])


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

router = APIRouter()


@router.get("/explain", response_model=ExplainedUrl, operation_id="explain")
def explain(ops: Calling, parameters: Annotated[ExplainParameters, Query()]) -> Response:
    """Explain the state of one URL: its reason in the crawl, and what is stored of it."""
    return answer(ops.reports.explain(parameters.url).as_json())


@router.get("/status", response_model=Status, operation_id="status")
def status(ops: Calling, parameters: Annotated[DomainParameters, Query()]) -> Response:
    """Report a domain: pages, open messages, timer, pack, and its URLs by reason."""
    return answer(ops.reports.status(parameters.domain))


@router.get("/broken-links", response_model=list[BrokenLink], operation_id="broken_links")
def list_broken_links(ops: Calling, parameters: Annotated[BrokenLinksParameters, Query()]) -> Response:
    """List the broken links of a domain's latest crawl, and the pages that have them; those of most pages first."""
    links = ops.reports.broken_links(ops.reports.latest(parameters.domain))
    return answer(list(links.read(parameters.offset, parameters.limit)))


@router.get("/urls", response_class=StreamingResponse, operation_id="urls", responses=_EXPORTS)
def urls(ops: Calling, parameters: Annotated[ExportParameters, Query()]) -> Response:
    """Export every URL of a domain's latest crawl with its reason, as JSON Lines or CSV."""
    form = Format(parameters.format)
    pieces = export_urls(ops.reports.latest(parameters.domain), form, reason=parameters.reason)
    return StreamingResponse(pieces, media_type=MEDIA_TYPES[form], headers=NO_STORE)
