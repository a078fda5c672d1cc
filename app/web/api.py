"""The JSON twin of the search page, and the answers for whoever watches the process."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, Field

from app.errors import PerennialError
from app.search.results import MAX_HITS, Hit
from app.web.pages import site_of
from app.web.site import Answer, Site, status_of

router = APIRouter()

_TITLES = {400: "Bad request", 404: "Not found", 503: "Service unavailable"}


class Problem(BaseModel):
    """An error as RFC 9457 has it."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


class HitModel(BaseModel):
    """One page found."""

    url: str
    path: str
    title: str
    snippet: str = Field(description="Plain text, not escaped.")
    marks: list[tuple[int, int]] = Field(description="Ranges of the snippet that match, as [start, end) code points.")
    headings: list[str] = Field(description="Headings with a word of the query.")
    lang: str
    score: float


class ResultsModel(BaseModel):
    """One page of hits."""

    domain: str
    query: str
    total: int
    capped: bool = Field(description="Whether there are more than `total`.")
    relaxed: bool = Field(description="Whether no page has all the words; the hits have some of them.")
    offset: int
    next_offset: int | None
    seconds: float
    built_at: str = Field(description="When the index was built: UTC, ISO 8601.")
    pages: int = Field(description="Pages in the index.")
    hits: list[HitModel]


@router.get(
    "/api/v1/search",
    responses={status: {"model": Problem, "description": title} for status, title in _TITLES.items()},
)
def search(
    site: Annotated[Site, Depends(site_of)],
    domain: Annotated[str, Query(description="The site, as it was indexed: `example.org`.")],
    q: Annotated[str, Query(description='Words, "phrases", -exclusions; the last word may be a beginning.')],
    offset: Annotated[int, Query(ge=0, lt=MAX_HITS)] = 0,
    limit: Annotated[int, Query(ge=1, le=50)] = 10,
) -> ResultsModel:
    """Search one site."""
    answer = site.search(domain, q, offset=offset, limit=limit)
    return _model(answer, offset=offset)


@router.api_route("/healthz", methods=["GET", "HEAD"], include_in_schema=False)
def healthz() -> PlainTextResponse:
    """Answer while the process does."""
    return PlainTextResponse("ok\n")


@router.api_route("/readyz", methods=["GET", "HEAD"], include_in_schema=False)
def readyz(site: Annotated[Site, Depends(site_of)]) -> PlainTextResponse:
    """Answer 200 while the store answers, else 503."""
    try:
        site.check()
    except PerennialError as error:
        return PlainTextResponse(f"{error.reason}\n", status_code=503)
    return PlainTextResponse("ok\n")


def problem(status: int, detail: str) -> JSONResponse:
    """Return an error as application/problem+json."""
    body = Problem(title=_TITLES.get(status, "Error"), status=status, detail=detail)
    return JSONResponse(body.model_dump(), status_code=status, media_type="application/problem+json")


def problem_of(request: Request, error: Exception) -> JSONResponse:
    """Tell an error of ours."""
    del request
    status = status_of(error) if isinstance(error, PerennialError) else 500
    return problem(status, str(error))


def _model(answer: Answer, *, offset: int) -> ResultsModel:
    end = offset + len(answer.results.hits)
    return ResultsModel(
        domain=answer.info.domain,
        query=answer.query.text,
        total=answer.results.total,
        capped=answer.results.capped,
        relaxed=answer.results.relaxed,
        offset=offset,
        next_offset=end if answer.results.hits and end < answer.results.total else None,
        seconds=answer.results.seconds,
        built_at=answer.info.built_at,
        pages=answer.info.pages,
        hits=[_hit_model(hit) for hit in answer.results.hits],
    )


def _hit_model(hit: Hit) -> HitModel:
    return HitModel(
        url=hit.url,
        path=hit.path,
        title=hit.title,
        snippet=hit.snippet.text,
        marks=list(hit.snippet.marks),
        headings=list(hit.headings),
        lang=hit.lang,
        score=hit.score,
    )
