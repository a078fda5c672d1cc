"""The search form: a search request read from the parameters of the page's address, and written into links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args
from urllib.parse import urlencode

from app.broker.errors import ApplicationError, InvalidMessage
from app.cluster.client.contract import MAX_DOMAINS
from app.crawl.urls import parse_domain
from app.errors import InvalidQuery
from app.search.contract import MAX_HITS, Filters, SearchRequest, Sort

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
