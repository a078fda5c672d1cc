"""The API's query parameters and JSON documents, as its OpenAPI description shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field, field_validator

from app.cluster.client.contract import MAX_DOMAINS
from app.cluster.protocol import PackRoute, to_json
from app.search.contract import (
    MAX_HITS,
    MAX_SUGGESTIONS,
    Alternate,
    BestBet,
    Filters,
    Hit,
    SearchRequest,
    SearchResult,
    Sort,
    Subsection,
)
from app.search.query import MAX_CHARACTERS
from app.web.suggested_pages import MAX_PAGES, SuggestedPage

# Parameters

#: Hits of one API answer, at most. A searcher returns up to `app.search.contract.MAX_LIMIT`.
MAX_API_LIMIT = 50
#: Characters of a host name (RFC 1035 section 2.3.4) and a port.
MAX_DOMAIN = 261


class StrictParameters(BaseModel):
    """Query parameters. An unknown one is refused: it may be a mistyped filter."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Parameters(StrictParameters):
    """Query parameters of searches and suggestions."""

    domain: list[Annotated[str, Field(min_length=1, max_length=MAX_DOMAIN)]] = Field(
        [],
        max_length=MAX_DOMAINS,
        description="The sites, as they were indexed; without it all. Several: repeat the parameter, or use commas.",
        examples=[["docs.example.org"]],
    )
    q: str = Field(
        min_length=1,
        max_length=MAX_CHARACTERS,
        description='Words, "phrases", -exclusions; the last word may be the beginning of one.',
        examples=['"event loop" -uvloop'],
    )

    @field_validator("domain", mode="after")
    @classmethod
    def _split_at_commas(cls, given: list[str]) -> list[str]:
        names = dict.fromkeys(name for each in given for part in each.split(",") if (name := part.strip()))
        if not 1 <= len(names) <= MAX_DOMAINS:
            raise ValueError(f"expected 1 to {MAX_DOMAINS} domains, not {len(names)}")
        return list(names)


class SearchParameters(Parameters):
    """Query parameters of a search."""

    offset: int = Field(0, ge=0, lt=MAX_HITS, description="Hits to leave out at the beginning.", examples=[10])
    limit: int = Field(10, ge=1, le=MAX_API_LIMIT, description="Hits to answer with, at most.", examples=[10])
    sort: Sort = Field("relevance", description="Best first, or newest first.")
    section: str = Field("", max_length=200, description="Only pages below this first part of the path.")
    lang: str = Field("", max_length=35, description="Only pages in this language, as the pages name it.")
    type: str = Field("", max_length=127, description="Only pages of this content type.")
    exact: bool = Field(False, description="Search only for the words as they are written.")

    def request(self, domains: Sequence[str], *, languages: Sequence[str] = ()) -> SearchRequest:
        """Return the search request that the parameters describe, for these domains and languages of a visitor."""
        return SearchRequest(
            domains=tuple(domains),
            q=self.q,
            offset=self.offset,
            limit=self.limit,
            sort=self.sort,
            filters=Filters(section=self.section, lang=self.lang, type=self.type),
            languages=tuple(languages),
        )


class SuggestParameters(Parameters):
    """Query parameters of suggestions."""

    limit: int = Field(8, ge=1, le=MAX_SUGGESTIONS, description="Suggestions to answer with, at most.", examples=[8])
    pages: int = Field(0, ge=0, le=MAX_PAGES, description="Pages to answer with, at most.", examples=[4])


# Answers

UtcTime = Annotated[str, Field(description="UTC, ISO 8601.", examples=["2026-11-21T10:04:00+00:00"])]


SiteName = Annotated[str, Field(description="The site's display name; its domain, if it has none.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem of RFC 9457. The description of the API lists the values of `type`."""

    type: Annotated[str, Field(examples=["/problems/never-indexed"])]
    title: Annotated[str, Field(description="The same for all faults of a type.")]
    status: Annotated[int, Field(ge=400, le=599, examples=[404])]
    detail: Annotated[str, Field(description="What is at fault this time.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSubsection:
    """A heading of a page found."""

    heading: Annotated[str, Field(description="Plain text, not escaped.")]
    url: Annotated[str, Field(description="The URL of the page with the fragment of the heading.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundHit:
    """One page found."""

    url: str
    opens_at: Annotated[FoundSubsection | None, Field(description="The heading that matches better than the title.")]
    subsections: Annotated[tuple[FoundSubsection, ...], Field(description="Other headings that match, at most three.")]
    copies: Annotated[int, Field(ge=0, description="Other pages with the same title and text.")]
    copy_urls: Annotated[tuple[str, ...], Field(description="Their URLs, at most ten.")]
    alternates: Annotated[tuple[Alternate, ...], Field(description="The page in other languages, at most 20.")]
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

    @classmethod
    def of(cls, hit: Hit) -> FoundHit:
        """Return a hit as the API shows it."""

        def found(subsection: Subsection) -> FoundSubsection:
            return FoundSubsection(heading=subsection.heading, url=hit.url_at(subsection))

        return cls(
            url=hit.url,
            opens_at=found(hit.opens_at) if hit.opens_at else None,
            subsections=tuple(map(found, hit.subsections)),
            copies=hit.copies,
            copy_urls=hit.copy_urls,
            alternates=hit.alternates,
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
    name: SiteName
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
    estimated: Annotated[bool, Field(description="Whether `total` and the facets are estimates.")]
    relaxed: Annotated[bool, Field(description="Whether no page has all the words; the hits have some of them.")]
    reachable: Annotated[int, Field(ge=0, description="Hits that can be paged through.")]
    offset: Annotated[int, Field(ge=0)]
    limit: Annotated[int, Field(ge=1)]
    next_offset: Annotated[int | None, Field(description="Where the next page of hits begins; null at the end.")]
    next: Annotated[str | None, Field(description="Path and query of the next page of hits; null at the end.")]
    seconds: Annotated[float, Field(ge=0)]
    did_you_mean: Annotated[str | None, Field(description="A query that finds more.")]
    corrected: Annotated[str | None, Field(description="The spelling searched for instead of `query`.")]
    sources: tuple[Source, ...]
    silent: tuple[Silent, ...]
    facets: tuple[FoundFacet, ...]
    best_bets: Annotated[
        tuple[BestBet, ...],
        Field(description="Pages that sites recommend, as plain text: on the first page of hits, without filters."),
    ]
    hits: tuple[FoundHit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestAnswer:
    """Queries that start with the given one, best first."""

    query: str
    suggestions: tuple[str, ...]
    pages: Annotated[tuple[SuggestedPage, ...], Field(description="Pages with all the words, best first.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """A site that was indexed."""

    domain: str
    name: SiteName
    pages: Annotated[int, Field(ge=0)]
    built_at: UtcTime
    available: Annotated[bool, Field(description="Whether a searcher answers for it now.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainsAnswer:
    """All sites that were indexed, in alphabetical order."""

    domains: tuple[Domain, ...]


def json_response(document: Any, *, status: int = 200, media_type: str = "application/json") -> Response:
    """Return a document of this module as a response. Pydantic writes the JSON directly, without dicts in between."""
    return Response(to_json(document), status_code=status, media_type=media_type)


def search_answer(result: SearchResult, request: SearchRequest, *, link: str, names: Mapping[str, str]) -> SearchAnswer:
    """Return the answer to a search; `link` is the address of the same search without its offset.

    `names` are the display names of sites by domain.
    """
    end = request.offset + len(result.hits)
    more = bool(result.hits) and end < result.reachable
    return SearchAnswer(
        query=request.q,
        total=result.total,
        estimated=result.estimated,
        relaxed=result.relaxed,
        reachable=result.reachable,
        offset=request.offset,
        limit=request.limit,
        next_offset=end if more else None,
        next=f"{link}&offset={end}" if more else None,
        seconds=result.seconds,
        did_you_mean=result.did_you_mean or None,
        corrected=result.corrected or None,
        sources=tuple(
            Source(
                domain=pack.domain,
                name=names.get(pack.domain, pack.domain),
                built_at=pack.built_at,
                pages=pack.pages,
            )
            for pack in result.sources
        ),
        silent=tuple(Silent(domain=domain, reason=reason) for domain, reason in result.silent),
        facets=tuple(
            FoundFacet(
                name=facet.name, values=tuple(FacetValue(value=value, pages=pages) for value, pages in facet.counts)
            )
            for facet in result.facets
        ),
        best_bets=result.best_bets,
        hits=tuple(FoundHit.of(hit) for hit in result.hits),
    )


def domain_answer(route: PackRoute, names: Mapping[str, str]) -> Domain:
    """Return a site as the API lists it."""
    return Domain(
        domain=route.domain,
        name=names.get(route.domain, route.domain),
        pages=route.pages,
        built_at=route.built_at,
        available=bool(route.searchers),
    )
