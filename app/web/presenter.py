"""The presenter: the search form, and search results as the texts, dates and links that the templates show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from typing import Any, get_args
from urllib.parse import urlencode

from app.cluster.protocol import PackRoute
from app.search.contract import (
    MAX_HITS,
    BestBet,
    Facet,
    Filters,
    Hit,
    PackInfo,
    SearchRequest,
    SearchResult,
    Sort,
)
from app.search.snippet import Snippet
from app.web.labels import label_of
from app.web.shown_urls import address_of, is_followable, site_and_address

#: Hits of one page of results.
PER_PAGE = 10
LAST_PAGE = MAX_HITS // PER_PAGE

#: Parameters that filter, each with its title.
FILTER_TITLES = {"section": "Section", "lang": "Language", "type": "Type"}
#: The request of an empty form.
EMPTY = SearchRequest(q="", domains=(), limit=PER_PAGE)
SORTS: tuple[Sort, ...] = get_args(Sort)

#: Page numbers shown on either side of the current one.
_NEIGHBOURS = 2
#: Values of one facet that are shown.
_CHOICES = 10

_LANGUAGE = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")


@dataclass(frozen=True, slots=True)
class SearchForm:
    """A search request as the form shows it. Without domains it is about all sites.

    With `exact` no other spelling is searched for.
    """

    request: SearchRequest = EMPTY
    exact: bool = False

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
        pairs += [("exact", "1")] if self.exact else []
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
        return [(name, value) for name in FILTER_TITLES if (value := str(getattr(self.request.filters, name)))]

    def changed(self, **changes: Any) -> SearchForm:
        """Return the form with other fields of the request, and of the first page of results unless they say which."""
        return replace(self, request=replace(self.request, **{"offset": 0, **changes}))

    def with_page(self, page: int) -> SearchForm:
        """Return the form of another page of the same results."""
        return self.changed(offset=(page - 1) * PER_PAGE)

    def with_text(self, text: str) -> SearchForm:
        """Return the form of the first page of results for another text, whose spelling may be corrected."""
        return replace(self.changed(q=text), exact=False)

    def with_filter(self, name: str, value: str) -> SearchForm:
        """Return the form of the first page with this filter. An empty value removes it."""
        return self.changed(filters=replace(self.request.filters, **{name: value}))

    def without_filters(self) -> SearchForm:
        """Return the form of the first page without filters."""
        return self.changed(filters=Filters())


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A link among others; `current` if it is for the page that is shown. `count` may be empty."""

    label: str
    href: str
    count: str = ""
    current: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FacetView:
    """The values of one property, most pages first. The link of a chosen value removes that filter."""

    name: str
    title: str
    choices: tuple[Choice, ...]

    @classmethod
    def of(cls, facet: Facet, form: SearchForm) -> FacetView:
        """Return the view of a facet; without choices if it has a single value."""
        chosen = dict(form.active_filters).get(facet.name, "")
        named = [(value, pages) for value, pages in facet.counts if value]
        shown = [pair for rank, pair in enumerate(named) if rank < _CHOICES or pair[0] == chosen]
        choices = tuple(
            Choice(
                label=label_of(facet.name, value),
                href=form.with_filter(facet.name, "" if value == chosen else value).href,
                count=f"{pages:,}",
                current=value == chosen,
            )
            for value, pages in shown
        )
        useful = facet.name in FILTER_TITLES and (len(choices) > 1 or bool(chosen))
        return cls(name=facet.name, title=FILTER_TITLES.get(facet.name, ""), choices=choices if useful else ())

    @classmethod
    def of_sites(cls, facet: Facet, form: SearchForm, names: Mapping[str, str]) -> FacetView:
        """Return the view of the facet of several sites. The link of a site leads to its own results."""
        choices = tuple(
            Choice(
                label=names.get(domain, domain),
                href=form.changed(domains=(domain,)).href,
                count=f"{pages:,}",
            )
            for domain, pages in facet.counts
        )
        return cls(name=facet.name, title="Site", choices=choices)


@dataclass(frozen=True, slots=True)
class PaginationLink:
    """A link to one page of results; `href` is empty for the page that is shown, `number` 0 for a gap."""

    number: int
    href: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HitView:
    """A hit as the page shows it. `href` is empty unless the URL is http(s): other schemes are no link.

    `address` follows `site`, which is empty if only one site was searched. `date` may be empty. `heading` is that of
    the subsection at which the hit opens. `subsections` lead to others, `copies` to other addresses of the same page,
    and `alternates` to the page in other languages.
    """

    href: str
    heading: str
    domain: str
    subsections: tuple[Choice, ...]
    copies: tuple[Choice, ...]
    alternates: tuple[tuple[str, Choice], ...]
    more_copies: int
    site: str
    address: str
    title: str
    snippet: Snippet
    lang: str
    modified: str
    date: str

    @classmethod
    def of(cls, hit: Hit, *, several: bool, names: Mapping[str, str]) -> HitView:
        """Return the view of a hit; `several` is whether more than one site was searched, with these display names."""
        followable = is_followable(hit.url)
        site, address = site_and_address(hit.url, hit.domain if several else "", names)
        copies = tuple(Choice(label=address_of(url), href=url) for url in hit.copy_urls if is_followable(url))
        day = ""
        with suppress(ValueError):
            modified = date.fromisoformat(hit.modified)
            day = f"{modified.day} {modified:%B %Y}"
        return cls(
            href=hit.link if followable else "",
            heading=hit.opens_at.heading if hit.opens_at else "",
            domain=hit.domain,
            subsections=tuple(
                Choice(label=subsection.heading, href=hit.url_at(subsection))
                for subsection in hit.subsections
                if followable
            ),
            copies=copies,
            alternates=tuple(
                (alternate.lang, Choice(label=label_of("lang", alternate.lang), href=alternate.url))
                for alternate in hit.alternates
                if is_followable(alternate.url) and _LANGUAGE.fullmatch(alternate.lang)
            ),
            more_copies=max(0, hit.copies - len(copies)),
            site=site,
            address=address,
            title=hit.title.strip() or hit.path,
            snippet=hit.snippet,
            lang=hit.lang if _LANGUAGE.fullmatch(hit.lang) else "",
            modified=hit.modified,
            date=day,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BestBetView(BestBet):
    """A recommended page as the page shows it; `site` and `address` are as in a hit."""

    site: str
    address: str

    @classmethod
    def of(cls, best_bet: BestBet, *, several: bool, names: Mapping[str, str]) -> BestBetView:
        """Return the view of a best bet; `several` is whether more than one site was searched."""
        site, address = site_and_address(best_bet.url, best_bet.domain if several else "", names)
        return cls(**asdict(best_bet), site=site, address=address)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackView:
    """Size and date of a pack; `day` is `built` without the time of day. `name` is the site's display name."""

    domain: str
    name: str
    pages: str
    built_at: str
    built: str
    day: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsView:
    """One page of results. Links to missing pages are empty. `did_you_mean` is a proposed query, or None.

    `corrected` is the spelling that was searched for instead, or empty; `as_typed` leads to the results without it.
    """

    first: int
    last: int
    total: str
    estimated: bool
    seconds: str
    relaxed: bool
    best_bets: tuple[BestBetView, ...]
    hits: tuple[HitView, ...]
    pages: tuple[PaginationLink, ...]
    previous: str
    next: str
    sorts: tuple[Choice, ...]
    facets: tuple[FacetView, ...]
    did_you_mean: Choice | None
    corrected: str
    as_typed: str
    silent: tuple[str, ...]
    sources: tuple[PackView, ...]


def results_view(result: SearchResult, form: SearchForm, names: Mapping[str, str]) -> ResultsView:
    """Return what the template shows of one page of results. `names` are the display names of sites by domain."""
    last_page = max(1, -(-min(result.total, result.reachable) // PER_PAGE))
    first, seconds = form.request.offset + 1, result.seconds
    did_you_mean = result.did_you_mean
    several = len(result.sources) + len(result.silent) > 1
    hits = tuple(HitView.of(hit, several=several, names=names) for hit in result.hits)
    # A date that all of them have says nothing.
    if len(hits) > 1 and len({hit.date for hit in hits}) == 1:
        hits = tuple(replace(hit, date="") for hit in hits)
    return ResultsView(
        first=first,
        last=first + len(result.hits) - 1,
        total=f"about {result.total:,}" if result.estimated else f"{result.total:,}",
        estimated=result.estimated,
        seconds=f"{max(1, round(seconds * 1_000))} ms" if seconds < 1 else f"{seconds:.1f} s",
        relaxed=result.relaxed,
        best_bets=tuple(
            BestBetView.of(each, several=several, names=names) for each in result.best_bets if is_followable(each.url)
        ),
        hits=hits,
        pages=tuple(
            PaginationLink(number, _page_href(form, number, last_page))
            for number in (_page_numbers(form.page, last_page) if last_page > 1 else ())
        ),
        previous=_page_href(form, form.page - 1, last_page),
        next=_page_href(form, form.page + 1, last_page),
        sorts=tuple(
            Choice(label=sort.capitalize(), href=form.changed(sort=sort).href, current=sort == form.request.sort)
            for sort in SORTS
        ),
        facets=_facet_views(result.facets, form, names),
        did_you_mean=Choice(label=did_you_mean, href=form.with_text(did_you_mean).href) if did_you_mean else None,
        corrected=result.corrected,
        as_typed=replace(form.changed(), exact=True).href,
        silent=tuple(names.get(domain, domain) for domain, _ in result.silent),
        sources=tuple(pack_view(source, names) for source in result.sources),
    )


def _facet_views(facets: Sequence[Facet], form: SearchForm, names: Mapping[str, str]) -> tuple[FacetView, ...]:
    """Return the facets with a choice, the sites first."""
    sites = [FacetView.of_sites(facet, form, names) for facet in facets if facet.name == "domain"]
    others = (FacetView.of(facet, form) for facet in facets if facet.name != "domain")
    return (*sites, *(view for view in others if view.choices))


def pack_view(pack: PackRoute | PackInfo, names: Mapping[str, str]) -> PackView:
    """Return what the template shows of a pack. `names` are the display names of sites by domain."""
    pages = f"{pack.pages:,} page{'' if pack.pages == 1 else 's'}"
    day = built = pack.built_at  # Shown unchanged if it is no valid time.
    with suppress(ValueError, OverflowError):
        time = datetime.fromisoformat(pack.built_at).astimezone(UTC)
        day = f"{time.day} {time:%B %Y}"
        built = f"{day}, {time:%H:%M} UTC"
    name = names.get(pack.domain, pack.domain)
    return PackView(domain=pack.domain, name=name, pages=pages, built_at=pack.built_at, built=built, day=day)


def _page_href(form: SearchForm, number: int, last: int) -> str:
    return form.with_page(number).href if 1 <= number <= last and number != form.page else ""


def _page_numbers(page: int, last: int) -> Sequence[int]:
    """Return the page numbers to show, with 0 for a gap."""
    near = range(max(1, page - _NEIGHBOURS), min(last, page + _NEIGHBOURS) + 1)
    shown: list[int] = []
    for number in sorted({1, *near, last}):
        if shown and number - shown[-1] == 2:
            shown.append(number - 1)  # A gap for a single page would be as wide as its number.
        elif shown and number - shown[-1] > 2:
            shown.append(0)
        shown.append(number)
    return shown
