"""What the API takes and answers, as it stands in its description."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Self

from fastapi import Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator
from starlette.datastructures import QueryParams

from app.cluster.client.contract import MAX_DOMAINS
from app.cluster.protocol import Route
from app.search.contract import (
    MAX_HITS,
    MAX_SUGGESTIONS,
    Facet,
    Filters,
    Hit,
    PackInfo,
    SearchRequest,
    SearchResult,
    Sort,
)
from app.search.query import MAX_CHARACTERS

#: Hits of one answer: fewer than searchers would give.
MAX_LIMIT = 50
#: Characters of a host name (RFC 1035 section 2.3.4) and a port.
_MAX_DOMAIN = 261

Domains = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=_MAX_DOMAIN)]],
    Field(
        min_length=1,
        max_length=MAX_DOMAINS,
        description="The sites, as they were indexed. Several: repeat the parameter, or put commas between.",
        examples=[["docs.example.org"]],
    ),
]
Words = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_CHARACTERS,
        description='Words, "phrases", -exclusions; the last word may be the beginning of one.',
        examples=['"event loop" -uvloop'],
    ),
]
UtcTime = Annotated[str, Field(description="UTC, ISO 8601.", examples=["2026-11-21T10:04:00+00:00"])]


class Parameters(BaseModel):
    """Parameters of every question. A parameter that is not known is refused: it would be left out in silence."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    domain: Domains
    q: Words

    @classmethod
    def read(cls, query: QueryParams) -> Self:
        """Return what a query string says, as FastAPI reads it; raises RequestValidationError as FastAPI does.

        Of `domain` all count that are given, of every other parameter the last one.
        """
        given: dict[str, Any] = dict(query)
        if "domain" in given:
            given["domain"] = query.getlist("domain")
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise RequestValidationError(error.errors(include_url=False)) from error

    @field_validator("domain", mode="after")
    @classmethod
    def _apart(cls, given: list[str]) -> list[str]:
        names = dict.fromkeys(name for each in given for part in each.split(",") if (name := part.strip()))
        if not 1 <= len(names) <= MAX_DOMAINS:
            raise ValueError(f"expected 1 to {MAX_DOMAINS} domains, not {len(names)}")
        return list(names)


class SearchParameters(Parameters):
    """Parameters of a search."""

    offset: int = Field(0, ge=0, lt=MAX_HITS, description="Hits to leave out at the beginning.", examples=[10])
    limit: int = Field(10, ge=1, le=MAX_LIMIT, description="Hits to answer with, at most.", examples=[10])
    sort: Sort = Field("relevance", description="Best first, or newest first.")
    section: str = Field("", max_length=200, description="Only pages below this first part of the path.")
    lang: str = Field("", max_length=35, description="Only pages in this language, as the pages name it.")
    type: str = Field("", max_length=127, description="Only pages of this content type.")

    def question(self) -> SearchRequest:
        """Return what is asked of a finder."""
        return SearchRequest(
            q=self.q,
            domains=tuple(self.domain),
            offset=self.offset,
            limit=self.limit,
            sort=self.sort,
            filters=Filters(section=self.section, lang=self.lang, type=self.type),
        )


class SuggestParameters(Parameters):
    """Parameters of suggestions."""

    limit: int = Field(8, ge=1, le=MAX_SUGGESTIONS, description="Suggestions to answer with, at most.", examples=[8])


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A fault as RFC 9457 has it. `type` tells the kinds of faults apart; the description of the API lists them."""

    type: Annotated[str, Field(examples=["/problems/never-indexed"])]
    title: Annotated[str, Field(description="The same for all faults of a type.")]
    status: Annotated[int, Field(ge=400, le=599, examples=[404])]
    detail: Annotated[str, Field(description="What is at fault this time.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundHit:
    """One page found."""

    url: str
    domain: str
    path: str
    title: Annotated[str, Field(description="Plain text, not escaped. May be empty.")]
    snippet: Annotated[str, Field(description="The piece of the page that fits best: plain text, not escaped.")]
    marks: Annotated[
        tuple[tuple[int, int], ...],
        Field(description="Ranges of the snippet that match, as [start, end) in code points, in order."),
    ]
    headings: Annotated[tuple[str, ...], Field(description="Headings of the page with a word of the query.")]
    section: Annotated[str, Field(description="The first part of the path.")]
    lang: str
    type: Annotated[str, Field(description="Content type, without parameters.")]
    modified: Annotated[str, Field(description="The date that the page gives itself, or empty.")]
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FacetValue:
    """How many of the pages found have this value."""

    value: str
    pages: Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFacet:
    """How the pages found are spread over one property, most first."""

    name: Annotated[str, Field(description="The parameter that narrows the search to one of these values.")]
    values: tuple[FacetValue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A site that answered, and of what time its index is."""

    domain: str
    built_at: UtcTime
    pages: Annotated[int, Field(ge=0, description="Pages in the index.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """A site that did not answer in time, while others did."""

    domain: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAnswer:
    """One page of hits."""

    query: str
    total: Annotated[int, Field(ge=0, description="Pages found.")]
    capped: Annotated[bool, Field(description="Whether there are more than `total`.")]
    relaxed: Annotated[bool, Field(description="Whether no page has all the words; the hits have some of them.")]
    reachable: Annotated[int, Field(ge=0, description="Hits that can be paged through.")]
    offset: Annotated[int, Field(ge=0)]
    limit: Annotated[int, Field(ge=1)]
    next_offset: Annotated[int | None, Field(description="Where the next page of hits begins; null at the end.")]
    next: Annotated[str | None, Field(description="Path and query of the next page of hits; null at the end.")]
    seconds: Annotated[float, Field(ge=0)]
    did_you_mean: Annotated[str | None, Field(description="A query that finds more.")]
    sources: tuple[Source, ...]
    silent: tuple[Silent, ...]
    facets: tuple[FoundFacet, ...]
    hits: tuple[FoundHit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestAnswer:
    """Queries that the one asked about may be the beginning of, best first."""

    query: str
    suggestions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """A site that was indexed."""

    domain: str
    pages: Annotated[int, Field(ge=0)]
    built_at: UtcTime
    available: Annotated[bool, Field(description="Whether a searcher answers for it now.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainsAnswer:
    """All sites that were indexed, in alphabetical order."""

    domains: tuple[Domain, ...]


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {
    kind: TypeAdapter(kind) for kind in (Problem, SearchAnswer, SuggestAnswer, DomainsAnswer)
}


def as_json(value: Any, *, status: int = 200, media_type: str = "application/json") -> Response:
    """Return a value of this module as a response, without the detour by way of Python's own types."""
    return Response(_ADAPTERS[type(value)].dump_json(value), status_code=status, media_type=media_type)


def search_answer(found: SearchResult, question: SearchRequest, *, link: str) -> SearchAnswer:
    """Return what the API says was found; `link` is the address of the same search, to which `offset` is added."""
    end = question.offset + len(found.hits)
    more = bool(found.hits) and end < found.reachable
    return SearchAnswer(
        query=question.q,
        total=found.total,
        capped=found.capped,
        relaxed=found.relaxed,
        reachable=found.reachable,
        offset=question.offset,
        limit=question.limit,
        next_offset=end if more else None,
        next=f"{link}&offset={end}" if more else None,
        seconds=found.seconds,
        did_you_mean=found.did_you_mean or None,
        sources=tuple(_source(info) for info in found.sources),
        silent=tuple(Silent(domain=domain, reason=reason) for domain, reason in found.silent),
        facets=tuple(_facet(facet) for facet in found.facets),
        hits=tuple(_hit(hit) for hit in found.hits),
    )


def domain_answer(route: Route) -> Domain:
    """Return what the API says of a site."""
    return Domain(domain=route.domain, pages=route.pages, built_at=route.built_at, available=bool(route.searchers))


def _source(info: PackInfo) -> Source:
    return Source(domain=info.domain, built_at=info.built_at, pages=info.pages)


def _facet(facet: Facet) -> FoundFacet:
    return FoundFacet(name=facet.name, values=tuple(FacetValue(value=value, pages=n) for value, n in facet.counts))


def _hit(hit: Hit) -> FoundHit:
    return FoundHit(
        url=hit.url,
        domain=hit.domain,
        path=hit.path,
        title=hit.title,
        snippet=hit.snippet.text,
        marks=hit.snippet.marks,
        headings=hit.headings,
        section=hit.section,
        lang=hit.lang,
        type=hit.type,
        modified=hit.modified,
        score=hit.score,
    )
