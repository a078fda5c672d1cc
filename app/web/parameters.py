"""Parameters of requests: the search form of the page, and the query parameters of the API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, get_args
from urllib.parse import urlencode

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, Field, field_validator

from app.broker.errors import ApplicationError, InvalidMessage
from app.cluster.client.contract import MAX_DOMAINS, SearchClient
from app.crawl.urls import parse_domain
from app.errors import InvalidQuery
from app.search.contract import MAX_HITS, MAX_SUGGESTIONS, Filters, SearchRequest, Sort
from app.search.query import MAX_CHARACTERS

#: Hits of one page of results.
PER_PAGE = 10
LAST_PAGE = MAX_HITS // PER_PAGE

#: Parameters that filter, each with its label.
FILTERS = {"section": "Section", "lang": "Language", "type": "Type"}
#: Characters of a filter's value.
_MAX_FILTER = 200
#: The request of an empty form.
_EMPTY = SearchRequest(q="", domains=(), limit=PER_PAGE)
SORTS: tuple[Sort, ...] = get_args(Sort)


@dataclass(frozen=True, slots=True)
class SearchForm:
    """A search request as the form shows it. Without domains it is about all sites."""

    request: SearchRequest = _EMPTY

    @property
    def text(self) -> str:
        """The text in the search box."""
        return self.request.q

    @property
    def domains(self) -> tuple[str, ...]:
        """The sites that are chosen."""
        return self.request.domains

    @property
    def page(self) -> int:
        """The number of the page of results, from 1."""
        return self.request.offset // PER_PAGE + 1

    @property
    def href(self) -> str:
        """The address of the page of results."""
        pairs = [("domain", domain) for domain in self.domains]
        pairs += [("q", self.text)] if self.text else []
        pairs += self.sort_and_filters
        pairs += [("page", str(self.page))] if self.page != 1 else []
        return f"/?{urlencode(pairs)}" if pairs else "/"

    @property
    def sort_and_filters(self) -> list[tuple[str, str]]:
        """Sort order and filters as parameters of an address, without defaults."""
        sort = self.request.sort
        return ([("sort", sort)] if sort != "relevance" else []) + self.active_filters

    @property
    def active_filters(self) -> list[tuple[str, str]]:
        """The filters that are set, as parameters."""
        return [(name, value) for name in FILTERS if (value := str(getattr(self.request.filters, name)))]

    def with_page(self, page: int) -> SearchForm:
        """Return the form of another page of the same results."""
        return SearchForm(replace(self.request, offset=(page - 1) * PER_PAGE))

    def with_text(self, text: str) -> SearchForm:
        """Return the form of the first page of results for another text."""
        return SearchForm(replace(self.request, q=text, offset=0))

    def with_sort(self, sort: Sort) -> SearchForm:
        """Return the form of the first page in another order."""
        return SearchForm(replace(self.request, sort=sort, offset=0))

    def with_filter(self, name: str, value: str) -> SearchForm:
        """Return the form of the first page with this filter. An empty value removes it."""
        return SearchForm(replace(self.request, filters=replace(self.request.filters, **{name: value}), offset=0))

    def without_filters(self) -> SearchForm:
        """Return the form of the first page without filters."""
        return SearchForm(replace(self.request, filters=Filters(), offset=0))


def read_form(
    *, q: str, domains: Sequence[str], sort: str, filters: Filters, page: str
) -> tuple[SearchForm, ApplicationError | None]:
    """Return the form that shows the valid parameters again, and the error of the last invalid one."""
    request = replace(_EMPTY, q=q)
    error: ApplicationError | None = None
    too_long = [label for name, label in FILTERS.items() if len(getattr(filters, name)) > _MAX_FILTER]
    if sort not in SORTS:
        error = InvalidQuery(f"results are not sorted by “{sort[:40]}”: by {' or '.join(SORTS)}")
    elif not (page.isascii() and page.isdigit() and 1 <= int(page[:9]) <= LAST_PAGE):
        error = InvalidQuery(f"there is no page “{page[:40]}”: pages are numbered from 1 to {LAST_PAGE}")
    elif too_long:
        error = InvalidQuery(f"{too_long[0].lower()}: expected at most {_MAX_FILTER} characters")
    else:
        request = replace(request, sort=sort, offset=(int(page) - 1) * PER_PAGE, filters=filters)
    try:
        names = tuple(dict.fromkeys(parse_domain(domain) for domain in domains if domain.strip()))
    except InvalidMessage as invalid:
        return SearchForm(request), invalid
    if len(names) > MAX_DOMAINS:
        error = InvalidMessage(f"{len(names)} sites are too many to search at once: choose {MAX_DOMAINS} at most")
    else:
        request = replace(request, domains=names)
    return SearchForm(request), error


#: Hits of one API answer, at most. A searcher returns up to `app.search.contract.MAX_LIMIT`.
MAX_API_LIMIT = 50
#: Characters of a host name (RFC 1035 section 2.3.4) and a port.
_MAX_DOMAIN = 261


async def _search_client(request: Request) -> SearchClient:
    """Return the application's search client. FastAPI runs a dependency that is not asynchronous in a thread."""
    client: SearchClient = request.app.state.search_client
    return client


Client = Annotated[SearchClient, Depends(_search_client)]


class Parameters(BaseModel):
    """Query parameters of searches and suggestions. An unknown parameter is refused: it may be a mistyped filter."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    domain: list[Annotated[str, Field(min_length=1, max_length=_MAX_DOMAIN)]] = Field(
        min_length=1,
        max_length=MAX_DOMAINS,
        description="The sites, as they were indexed. Several: repeat the parameter, or put commas between.",
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

    def request(self) -> SearchRequest:
        """Return the search request that the parameters describe."""
        return SearchRequest(
            domains=tuple(self.domain),
            q=self.q,
            offset=self.offset,
            limit=self.limit,
            sort=self.sort,
            filters=Filters(section=self.section, lang=self.lang, type=self.type),
        )


class SuggestParameters(Parameters):
    """Query parameters of suggestions."""

    limit: int = Field(8, ge=1, le=MAX_SUGGESTIONS, description="Suggestions to answer with, at most.", examples=[8])
