"""The JSON API's part for operators, who send a token: states and reasons of the URLs of a site's latest crawl."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field
from redis import RedisError
from starlette.concurrency import run_in_threadpool

from app.broker.errors import ApplicationError, InvalidMessage, Overloaded
from app.crawl.reports.crawl_report import BrokenLink
from app.crawl.reports.url_export import MEDIA_TYPES, Format, export_urls
from app.errors import (
    BodyRefused,
    CrawlNotFound,
    OperatorRequired,
    ResourceNotFound,
    SearchUnavailable,
    TooManySearches,
    UriTooLong,
)
from app.sites.crawl_reports import CrawlReports
from app.sites.status import Status
from app.web.api import describe_errors
from app.web.models import MAX_DOMAIN, StrictParameters

#: Fields of every answer: no cache keeps it.
_FIELDS = {"Cache-Control": "no-store"}

_Read = TypeVar("_Read")


class ExplainParameters(StrictParameters):
    """Query parameters of an explanation."""

    url: str = Field(min_length=1, max_length=2_000, description="A page.", examples=["https://docs.example.org/a"])


class DomainParameters(StrictParameters):
    """Query parameters of what is said of one site."""

    domain: str = Field(
        min_length=1, max_length=MAX_DOMAIN, description="The site, as it was indexed.", examples=["docs.example.org"]
    )


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


_bearer = HTTPBearer(auto_error=False, description="The value of `WEB_OPERATOR_TOKEN`.")


async def require_operator(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> None:
    """Raise OperatorRequired without the operator's token, and ResourceNotFound if the settings have none."""
    expected: str = request.app.state.operator_token
    if not expected:
        raise ResourceNotFound("only operators may read this, and WEB_OPERATOR_TOKEN is not set here")
    given = credentials.credentials if credentials else ""
    if not hmac.compare_digest(given.encode(), expected.encode()):
        raise OperatorRequired("send the operator's token as `Authorization: Bearer TOKEN`")


_ERRORS = describe_errors(
    *(InvalidMessage, BodyRefused, UriTooLong, OperatorRequired, ResourceNotFound, CrawlNotFound, TooManySearches),
    *(ApplicationError, Overloaded, SearchUnavailable),
)
_EXPORTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {media_type: {"schema": {"type": "string"}} for media_type in MEDIA_TYPES.values()}}
}

router = APIRouter(prefix="/api/v1", dependencies=[Depends(require_operator)], responses=_ERRORS)


@router.get("/explain", response_model=ExplainedUrl, operation_id="explain")
async def explain(request: Request, parameters: Annotated[ExplainParameters, Query()]) -> Response:
    """Explain the state of one URL, for operators: its reason in the crawl, and what is stored of it."""
    return await _answer(request, lambda reports: reports.explain(parameters.url).as_json())


@router.get("/status", response_model=Status, operation_id="status")
async def status(request: Request, parameters: Annotated[DomainParameters, Query()]) -> Response:
    """Report a domain, for operators: pages, open messages, timer, pack, and its URLs by reason."""
    return await _answer(request, lambda reports: asdict(reports.status(parameters.domain)))


@router.get("/broken-links", response_model=list[BrokenLink], operation_id="broken_links")
async def list_broken_links(request: Request, parameters: Annotated[DomainParameters, Query()]) -> Response:
    """List the broken links of a domain's latest crawl, for operators, and the pages that have them."""

    def found(reports: CrawlReports) -> list[dict[str, Any]]:
        return [asdict(each) for each in reports.broken_links(reports.latest(parameters.domain))]

    return await _answer(request, found)


@router.get("/urls", response_class=StreamingResponse, operation_id="urls", responses=_EXPORTS)
async def urls(request: Request, parameters: Annotated[ExportParameters, Query()]) -> Response:
    """Export every URL of a domain's latest crawl with its reason, for operators, as JSON Lines or CSV."""
    report = await _read(request, lambda reports: reports.latest(parameters.domain))
    form = Format(parameters.format)
    pieces = export_urls(report, form, reason=parameters.reason)
    return StreamingResponse(pieces, media_type=MEDIA_TYPES[form], headers=_FIELDS)


async def _answer(request: Request, read: Callable[[CrawlReports], Any]) -> Response:
    """Answer with the JSON that the command prints with `--json`."""
    document = json.dumps(await _read(request, read), default=str)
    return Response(document, media_type="application/json", headers=_FIELDS)


async def _read(request: Request, read: Callable[[CrawlReports], _Read]) -> _Read:
    """Return what a function reads of the crawls, in a thread; raises SearchUnavailable while Redis is away."""
    try:
        return await run_in_threadpool(lambda: read(request.app.state.crawl_reports()))
    except RedisError as error:
        raise SearchUnavailable(f"Redis: {error}") from error
