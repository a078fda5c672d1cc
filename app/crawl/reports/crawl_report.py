"""What became of the URLs of a domain's latest crawl: totals, broken links, and an export of all of them."""

from __future__ import annotations

import csv
import heapq
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from itertools import chain, islice
from typing import Any, Final

from app.broker.errors import InvalidMessage
from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.values import is_sitemap
from app.crawl.record.crawls import CrawlRecord, latest_crawl, read_crawl
from app.crawl.record.entries import STORED_STATES, UrlEntry, is_reason_code
from app.crawl.record.keys import CrawlRef
from app.crawl.record.reasons import Reason
from app.crawl.record.segments import LatestEntries, latest_entries, read_excluded
from app.crawl.urls import canonical_key
from app.storage.damage import read_intact
from app.storage.layout import Page, content_key, id_in_key, outline_of, page_id
from app.storage.store import ObjectStore

#: Pages that are listed of each broken link.
MAX_SOURCES: Final = 20
#: Canonical keys of links that are kept while broken links are collected: most pages repeat the same ones.
_CACHED_KEYS: Final = 50_000

#: Reasons of URLs that are no pages of the site.
_NO_PAGES: Final = frozenset({Reason.SITEMAP, Reason.SOFT_404_CHECK})
#: Reasons of URLs that have content which is not to be indexed.
_FORBIDDEN: Final = frozenset({Reason.NOINDEX, Reason.ROBOTS, Reason.BLOCKED})

#: Columns of CSV; JSON Lines have the same names.
COLUMNS: Final = ("url", "state", "reason", "detail", "status", "at", "depth", "referrer")
#: A spreadsheet takes a cell that begins so for a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
#: Rows of one piece.
_ROWS: Final = 500


class Format(StrEnum):
    """The format of an export."""

    JSONL = "jsonl"
    CSV = "csv"


#: The media type of each format.
MEDIA_TYPES: Final = {Format.JSONL: "application/x-ndjson", Format.CSV: "text/csv"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlReport:
    """One crawl: its record, the last entry of each page by page id, and its excluded URLs.

    `excluded` has the number of excluded URLs by reason, `listed` the first ones of each reason. `waiting` counts pages
    that are in work, in the backlog or between two attempts.
    """

    record: CrawlRecord
    entries: LatestEntries
    excluded: Mapping[str, int]
    listed: tuple[UrlEntry, ...]
    waiting: int

    @property
    def totals(self) -> dict[str, int]:
        """Numbers of URLs by reason code, or by state where that says all; most frequent first."""
        counted = Counter(entry.code for entry in self.entries.values())
        counted.update(self.excluded)
        if self.waiting:
            counted["waiting"] = self.waiting
        return in_order(counted)

    def rows(self, reason: str = "", *, first: int = 0) -> Iterator[dict[str, str | int]]:
        """Yield a row for each URL, or each with a reason code, after `first` ones.

        Each row has all columns; unknown values are empty texts and zeros.
        """
        entries = (each for each in chain(self.entries.values(), self.listed) if reason in ("", each.code))
        for entry in islice(entries, first, None):
            referrer = self.entries.get(entry.referrer)
            yield {
                "url": entry.url,
                "state": entry.state,
                "reason": entry.code,
                "detail": entry.detail,
                "status": entry.status,
                "at": datetime.fromtimestamp(entry.at, UTC).isoformat(timespec="seconds"),
                "depth": entry.depth,
                "referrer": referrer.url if referrer else "",
            }


@dataclass(frozen=True, slots=True)
class BrokenLink:
    """A URL that pages link to and that has no content: `reason` is a reason code, `status` 0 without a response.

    `pages` are the URLs of up to `MAX_SOURCES` pages that link to it, of `number` pages.
    """

    url: str
    status: int
    reason: str
    detail: str
    number: int
    pages: tuple[str, ...]


def read_report(frontier: Frontier, store: ObjectStore, domain: str, *, crawl_id: str = "") -> CrawlReport | None:
    """Return the report of a domain's crawl, the latest one by default; None for a crawl without a record."""
    record = _record_of(frontier, store, domain, crawl_id)
    if record is None:
        return None
    _, lines = frontier.buffered_lines(record.id, -1)
    buffered = [UrlEntry.from_line(line.encode()) for line in lines]
    entries = latest_entries(store, record.ref, after=buffered)
    mark_duplicates(entries)
    excluded, listed = _excluded_of(frontier, store, record)
    return CrawlReport(
        record=record,
        entries=entries,
        excluded=excluded,
        listed=tuple(entry for entry in listed if entry.page_id not in entries),
        waiting=frontier.figures(record.id).left,
    )


def reason_totals(frontier: Frontier, store: ObjectStore, domain: str) -> dict[str, int]:
    """Return the totals of a domain's latest crawl without sitemaps and its soft-404 check, which are no pages.

    Those of a crawl that has ended are in its record. A sitemap that failed has another reason, and counts.
    """
    record = _record_of(frontier, store, domain, "")
    if record is None:
        return {}
    if record.is_finished and record.reasons and not frontier.buffered_lines(record.id, 1)[1]:
        totals = in_order(record.reasons)
    else:
        report = read_report(frontier, store, domain, crawl_id=record.id)
        totals = report.totals if report else {}
    return {reason: number for reason, number in totals.items() if reason not in _NO_PAGES}


def in_order(counts: Mapping[str, int]) -> dict[str, int]:
    """Return numbers by reason code, the largest ones first."""
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def mark_duplicates(entries: LatestEntries) -> None:
    """Mark each stored page with the title and text of another as its duplicate.

    The page with the shortest URL is the original.
    """
    for entry, original in entries.copies():
        if entry.reason != Reason.CANONICAL:
            entries.replace(replace(entry, reason=Reason.DUPLICATE, detail=original.url))


def export_urls(report: CrawlReport, form: Format, *, reason: str = "") -> Iterator[str]:
    """Return the export of a crawl's URLs in pieces, or only of those with a reason code; raises InvalidMessage."""
    if reason and reason not in report.totals and not is_reason_code(reason):
        found = ", ".join(report.totals)
        raise InvalidMessage(f"reason {reason!r}: unknown reason code; this crawl has {found or 'none'}")
    rows = report.rows(reason)
    if form is Format.JSONL:
        return _pieces(f"{json.dumps(row)}\n" for row in rows)
    return _pieces(chain([f"{','.join(COLUMNS)}\r\n"], map(_csv_line, rows)))


def _pieces(lines: Iterable[str]) -> Iterator[str]:
    lines = iter(lines)
    while piece := "".join(islice(lines, _ROWS)):
        yield piece


def _csv_line(row: Mapping[str, Any]) -> str:
    line = io.StringIO()
    cells = {
        name: f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
        for name, value in row.items()
    }
    csv.DictWriter(line, COLUMNS).writerow(cells)
    return line.getvalue()


@dataclass(frozen=True, slots=True)
class BrokenLinks:
    """The broken links of a crawl, those of most pages first: their `total`, and each as it is read.

    Of each URL only the canonical key, a page id and the pages that are listed are in memory.
    """

    _entries: LatestEntries
    _found: Sequence[tuple[str, _Sources]]

    @property
    def total(self) -> int:
        """The number of broken links."""
        return len(self._found)

    def read(self, first: int = 0, limit: int | None = None) -> Iterator[BrokenLink]:
        """Yield at most `limit` links, after `first` ones."""
        for ident, sources in islice(self._found, first, None if limit is None else first + limit):
            entry = self._entries[ident]
            urls = tuple(sources.urls)
            yield BrokenLink(entry.url, entry.status, entry.code, entry.detail, sources.number, urls)


def broken_links(report: CrawlReport, store: ObjectStore) -> BrokenLinks:
    """Return the broken links of a crawl. Reads the crawl's stored pages."""
    sources: dict[str, _Sources] = {}
    for entry in report.entries.values():
        if entry.state == "skipped":
            is_broken = entry.status >= 400 or entry.reason == Reason.INVALID_REDIRECT
        else:
            is_broken = entry.state == "failed" or (entry.state == "gone" and entry.reason not in _FORBIDDEN)
        if is_broken and not is_sitemap(entry):
            # A start page needs no link.
            sources[canonical_key(entry.url)] = _Sources(entry.page_id, is_start=not entry.depth)
    key_of = lru_cache(_CACHED_KEYS)(canonical_key)
    for url, links in _links(report, store) if sources else ():
        for key in {key_of(link) for link in links} & sources.keys():
            sources[key].add(url)
    found = [(key, each) for key, each in sources.items() if each.number or each.is_start]
    found.sort(key=lambda pair: (-pair[1].number, pair[0]))
    return BrokenLinks(report.entries, [(each.page_id, each) for _, each in found])


@dataclass(slots=True)
class _Sources:
    """The pages that link to the URL of `page_id`: their number, and the first ones in the order of their URLs."""

    page_id: str
    is_start: bool
    number: int = 0
    urls: list[str] = field(default_factory=list)

    def add(self, url: str) -> None:
        self.number += 1
        self.urls = heapq.nsmallest(MAX_SOURCES, [*self.urls, url])


def _links(report: CrawlReport, store: ObjectStore) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the URL of each page with the URLs that it links to."""
    entries, domain = report.entries, report.record.domain
    for entry in entries.values():
        if entry.links:
            yield entry.url, entry.links
    stored = (
        content_key(domain, entry.page_id)
        for entry in entries.values()
        if entry.state in STORED_STATES and not entry.links
    )
    for key, content in read_intact(store, stored, outline_of):
        if isinstance(content, Page):
            yield entries[id_in_key(key)].url, tuple(link.url for link in content.links)


def _record_of(frontier: Frontier, store: ObjectStore, domain: str, crawl_id: str) -> CrawlRecord | None:
    if not crawl_id:
        latest = frontier.latest(domain)
        if latest is None or not latest.recorded:
            return latest_crawl(store, domain)
        crawl_id = latest.id
    return read_crawl(store, CrawlRef(domain, crawl_id))


def _excluded_of(
    frontier: Frontier, store: ObjectStore, record: CrawlRecord
) -> tuple[Mapping[str, int], list[UrlEntry]]:
    """Return what Redis knows of a crawl's excluded URLs, or else what was written when it ended."""
    excluded = frontier.excluded(record.id)
    if excluded.counts:
        return excluded.counts, [
            UrlEntry(
                url=link.url,
                page_id=page_id(link.key),
                state="excluded",
                reason=reason,
                at=record.started.timestamp(),
                depth=link.depth,
                referrer=link.referrer,
            )
            for reason, link in excluded.listed
        ]
    listed = read_excluded(store, record.ref)
    counted = Counter(entry.reason for entry in listed)
    return {reason: max(number, record.reasons.get(reason, 0)) for reason, number in counted.items()}, listed
