"""Build the hits of one page of results: read their pages, and choose what each hit shows and where it opens."""

from __future__ import annotations

import sqlite3
from codecs import utf_8_decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from app.search import pack_tables
from app.search.alternates import Alternates
from app.search.contract import Hit, Subsection
from app.search.definitions import Definition
from app.search.matcher import Matcher
from app.search.pack_tables import cut
from app.search.passage_scorer import MAX_SCANNED
from app.search.properties import Properties
from app.search.query import Phrase
from app.search.snippet import (
    Snippet,
    best_snippet,
    first_paragraph,
    matching_lines,
    phrases_in,
    snippet_of_section,
)
from app.search.subsections import best_pdf_page, choose, subsection_with
from app.search.visible import VisiblePages
from app.text.titles import without_site_name

#: Headings of a hit, and characters of each.
_MAX_HEADINGS, _MAX_HEADING = 10, 300
#: Addresses of a hit's copies.
_MAX_COPIES = 10
#: Bytes of a body: enough for the characters that are scanned, and cut by SQLite without counting characters.
_BODY_BYTES = 4 * MAX_SCANNED
_BODY = f"substr(CAST(body AS BLOB), 1, {_BODY_BYTES})"
#: Columns of a hit. A reply has to stay small, whatever the pack has: the crawl follows URLs of 2,000 characters.
_HIT_COLUMNS = f"""id, {cut("url", 4_000)}, {cut("path", 4_000)}, {cut("title", 500)}, {cut("headings", 100_000)},
    {cut("description", 10_000)}, {_BODY}, {cut("lang", 35)}, {cut("modified", 10)},
    {cut("subsections", 100_000)}"""


class Place(NamedTuple):
    """The place of a hit: a page, and the fragment of the section that defines the query's name.

    The fragment is empty for the whole page, and None where the hit may open at any subsection.
    """

    page: int
    fragment: str | None = None


def places_of(pages: Sequence[int], defined: Sequence[Definition]) -> list[Place]:
    """Return the places of hits: each page, or instead the sections of it that define the query's name."""
    fragments: dict[int, list[str | None]] = {}
    for each in defined:
        fragments.setdefault(each.page, []).append(each.fragment)
    if not fragments:
        return [Place(page) for page in pages]
    return [Place(page, fragment) for page in pages for fragment in fragments.get(page, (None,))]


@dataclass(frozen=True, slots=True)
class _PageHit:
    """The hit of a page, which opens at any subsection, with what decides what it shows at a fragment.

    `subsections` has a line for each: fragment, tab, heading.
    """

    hit: Hit
    subsections: str
    first_heading: str
    body: str

    def at(self, fragment: str | None, matcher: Matcher) -> Hit:
        """Return the hit that opens at a fragment and shows its first paragraph; None for the hit as it is."""
        if fragment is None:
            return self.hit
        opens_at = subsection_with(fragment, self.subsections)
        heading = opens_at.heading if opens_at else self.first_heading
        snippet = first_paragraph(self.body, heading, matcher) or self.hit.snippet
        coverage = _coverage(snippet, self.hit.title, opens_at, matcher)
        return replace(self.hit, opens_at=opens_at, snippet=snippet, coverage=coverage)


@dataclass(frozen=True, slots=True)
class HitBuilder:
    """Builds the hits of the pack of a domain. `site_name` is the part that titles share."""

    domain: str
    site_name: str
    properties: Properties
    alternates: Alternates

    def build(
        self,
        connection: sqlite3.Connection,
        places: Sequence[Place],
        represented: Mapping[int, int],
        scores: Mapping[int, float],
        phrases: tuple[Phrase, ...],
        shown: VisiblePages,
    ) -> tuple[Hit, ...]:
        """Return the hits at these places; `represented` has the page that is shown for each ranked page."""
        matcher = Matcher(phrases)
        ranked = {page: each for each, page in represented.items()}
        hits: dict[int, _PageHit] = {}
        for page, *columns in pack_tables.read_rows(connection, _HIT_COLUMNS, tuple(ranked)):
            score = scores[ranked[page]]
            hits[page] = self._page_hit(connection, page, columns, ranked[page], score, shown, matcher)
        return tuple(hits[represented[place.page]].at(place.fragment, matcher) for place in places)

    def _page_hit(
        self,
        connection: sqlite3.Connection,
        page: int,
        columns: Sequence[Any],
        ranked: int,
        score: float,
        shown: VisiblePages,
        matcher: Matcher,
    ) -> _PageHit:
        """Return the hit of a page that is shown for the `ranked` page of its group."""
        url, path, title, headings, description, utf8, lang, modified, subsections = columns
        utf8 = utf8 or b""
        # Without the last character, if _BODY has cut it.
        body = utf_8_decode(utf8, "strict", len(utf8) < _BODY_BYTES)[0][:MAX_SCANNED]
        others = [each for each in (ranked, *shown.copies.get(ranked, ())) if each != page]
        opens_at, listed = choose(subsections, title=title, matcher=matcher)
        texts = (description, body)
        if opens_at is None:
            snippet = best_snippet(texts, matcher, title=title)
        else:
            snippet = snippet_of_section(texts, opens_at.heading, matcher, title=title)
        opens_at = opens_at or best_pdf_page(subsections, body, matcher)
        title = without_site_name(title, self.site_name)
        hit = Hit(
            url=url,
            path=path,
            title=title,
            snippet=snippet,
            headings=tuple(line[:_MAX_HEADING] for line in matching_lines(headings, matcher)[:_MAX_HEADINGS]),
            lang=lang,
            score=score,
            domain=self.domain,
            section=self.properties.of("section", page),
            type=self.properties.of("type", page),
            modified=modified,
            opens_at=opens_at,
            subsections=listed,
            copies=len(others),
            copy_urls=pack_tables.urls(connection, others[:_MAX_COPIES]),
            alternates=self.alternates.others(connection, ranked, shown),
            coverage=_coverage(snippet, title, opens_at, matcher),
        )
        return _PageHit(hit, subsections, headings.partition("\n")[0], body)


def _coverage(snippet: Snippet, title: str, opens_at: Subsection | None, matcher: Matcher) -> float:
    shown: set[int] = set()
    for text in (snippet.text, title, opens_at.heading if opens_at else ""):
        if len(shown) < matcher.phrase_count:
            shown |= phrases_in(text, matcher)
    return len(shown) / max(1, matcher.phrase_count)
