"""What somebody asked for: read from the page's address, checked, and written into other addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import get_args
from urllib.parse import urlencode

from app.broker.errors import InvalidMessage
from app.cluster.client.contract import MAX_DOMAINS
from app.crawl.urls import parse_domain
from app.errors import InvalidQuery
from app.search.contract import MAX_HITS, Filters, SearchRequest, Sort

#: Hits of one page of results.
PER_PAGE = 10
LAST_PAGE = MAX_HITS // PER_PAGE

#: Parameters that filter, and what each one is called.
FILTERS = {"section": "Section", "lang": "Language", "type": "Type"}
#: Characters of a filter's value.
_LONGEST = 200
SORTS: tuple[Sort, ...] = get_args(Sort)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchForm:
    """A question as a page's address has it. No `domains`: of all sites. `page` counts from 1."""

    text: str = ""
    domains: tuple[str, ...] = ()
    sort: Sort = "relevance"
    filters: Filters = field(default_factory=Filters)
    page: int = 1

    @property
    def href(self) -> str:
        """The address of the page that answers this."""
        pairs = [("domain", domain) for domain in self.domains]
        pairs += [("q", self.text)] if self.text else []
        pairs += self.settings
        pairs += [("page", str(self.page))] if self.page != 1 else []
        return f"/?{urlencode(pairs)}" if pairs else "/"

    @property
    def settings(self) -> list[tuple[str, str]]:
        """Order and filters as parameters, where they are not the usual ones."""
        return ([("sort", self.sort)] if self.sort != "relevance" else []) + self.filtered

    @property
    def filtered(self) -> list[tuple[str, str]]:
        """The filters that are set, as parameters."""
        return [(name, value) for name in FILTERS if (value := str(getattr(self.filters, name)))]

    def filter(self, name: str, value: str) -> SearchForm:
        """Return the first page of the same with this filter, or where the value is empty without it."""
        return replace(self, filters=replace(self.filters, **{name: value}), page=1)

    def question(self, domains: Sequence[str]) -> SearchRequest:
        """Return what to ask of these domains."""
        return SearchRequest(
            q=self.text,
            domains=tuple(domains),
            offset=(self.page - 1) * PER_PAGE,
            limit=PER_PAGE,
            sort=self.sort,
            filters=self.filters,
        )


def read_asked(
    *, text: str, domains: Sequence[str], sort: str, filters: Filters, page: str
) -> tuple[SearchForm, InvalidMessage | InvalidQuery | None]:
    """Return what can be read of parameters, for the form to show it again, and what is wrong with the rest."""
    asked = SearchForm(text=text)
    fault: InvalidMessage | InvalidQuery | None = None
    try:
        asked = replace(asked, sort=_sort(sort), page=_page_number(page), filters=_filters(filters))
    except InvalidQuery as error:
        fault = error
    try:
        asked = replace(asked, domains=_domains(domains))
    except InvalidMessage as error:
        fault = error
    return asked, fault


def _domains(given: Sequence[str]) -> tuple[str, ...]:
    named = tuple(dict.fromkeys(parse_domain(domain) for domain in given if domain.strip()))
    if len(named) > MAX_DOMAINS:
        raise InvalidMessage(f"{len(named)} sites are too many to search at once: choose {MAX_DOMAINS} at most")
    return named


def _sort(text: str) -> Sort:
    if text not in SORTS:
        raise InvalidQuery(f"results are not sorted by “{text[:40]}”: by {' or '.join(SORTS)}")
    return text


def _filters(given: Filters) -> Filters:
    for name, title in FILTERS.items():
        if len(getattr(given, name)) > _LONGEST:
            raise InvalidQuery(f"{title.lower()}: expected at most {_LONGEST} characters")
    return given


def _page_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= LAST_PAGE):
        raise InvalidQuery(f"there is no page “{text[:40]}”: pages are numbered from 1 to {LAST_PAGE}")
    return int(text)
