"""The values that the templates show: counts, dates and links ready for reading."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

from app.pack.read import Manifest
from app.search.results import MAX_HITS, Hit, Results
from app.search.snippet import Snippet

#: Hits of one page of results.
PER_PAGE = 10
LAST_PAGE = MAX_HITS // PER_PAGE
#: Page numbers shown on either side of the one that is read.
_NEIGHBOURS = 2

_LANGUAGE = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")


@dataclass(frozen=True, slots=True)
class PageLink:
    """A link to one page of results; `href` is empty for the page that is shown, `number` 0 for a gap."""

    number: int
    href: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HitView:
    """A hit as it is shown. `href` is empty where the address is not http(s): it is then no link."""

    href: str
    address: str
    title: str
    snippet: Snippet
    lang: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsView:
    """One page of results. Empty links where there is no previous or next page."""

    first: int
    last: int
    total: str
    seconds: str
    relaxed: bool
    hits: tuple[HitView, ...]
    pages: tuple[PageLink, ...]
    previous: str
    next: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PackView:
    """Of what time and size the index is."""

    domain: str
    pages: str
    built_at: str
    built: str


def results_view(results: Results, *, domain: str, text: str, page: int) -> ResultsView:
    """Return what the template shows of one page of results."""
    last_page = max(1, -(-results.total // PER_PAGE))
    first = (page - 1) * PER_PAGE + 1

    def link(number: int) -> str:
        wanted = 1 <= number <= last_page and number != page
        return f"/?{urlencode({'domain': domain, 'q': text, 'page': number})}" if wanted else ""

    return ResultsView(
        first=first,
        last=first + len(results.hits) - 1,
        total=f"more than {results.total:,}" if results.capped else f"{results.total:,}",
        seconds=_seconds(results.seconds),
        relaxed=results.relaxed,
        hits=tuple(_hit_view(hit) for hit in results.hits),
        pages=tuple(PageLink(number, link(number)) for number in _numbers(page, last_page)) if last_page > 1 else (),
        previous=link(page - 1),
        next=link(page + 1),
    )


def pack_view(manifest: Manifest) -> PackView:
    """Return what the template shows of a pack."""
    pages = f"{manifest.pages:,} page{'' if manifest.pages == 1 else 's'}"
    return PackView(domain=manifest.domain, pages=pages, built_at=manifest.built_at, built=_date(manifest.built_at))


def _hit_view(hit: Hit) -> HitView:
    followable = hit.url.lower().startswith(("http://", "https://"))
    return HitView(
        href=hit.url if followable else "",
        address=hit.url.partition("://")[2].removesuffix("/") if followable else hit.url,
        title=hit.title or hit.path,
        snippet=hit.snippet,
        lang=hit.lang if _LANGUAGE.fullmatch(hit.lang) else "",
    )


def _numbers(page: int, last: int) -> Sequence[int]:
    """Return the page numbers to show, 0 where some are left out."""
    near = range(max(1, page - _NEIGHBOURS), min(last, page + _NEIGHBOURS) + 1)
    shown: list[int] = []
    for number in sorted({1, *near, last}):
        if shown and number - shown[-1] == 2:
            shown.append(number - 1)  # A gap of one page is as wide as the page's number.
        elif shown and number - shown[-1] > 2:
            shown.append(0)
        shown.append(number)
    return shown


def _seconds(seconds: float) -> str:
    return f"{max(1, round(seconds * 1_000))} ms" if seconds < 1 else f"{seconds:.1f} s"


def _date(text: str) -> str:
    try:
        when = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return text
    return f"{when.day} {when:%B %Y, %H:%M} UTC"
