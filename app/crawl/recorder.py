"""Writes the record of each crawl in the store, as the frontier has it: begins, flushes, restores and ends it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from app.crawl.frontier.frontier import CRAWL_TTL, Frontier
from app.crawl.frontier.values import Crawl, is_sitemap
from app.crawl.policy import PolicyOfDomain
from app.crawl.record.crawls import (
    CrawlRecord,
    CrawlState,
    add_crawl,
    list_crawls,
    prune,
    read_crawl,
    update_crawl,
)
from app.crawl.record.entries import STORED_STATES, UrlEntry
from app.crawl.record.keys import CrawlRef
from app.crawl.record.removed_sites import removed_at
from app.crawl.record.segments import (
    LatestEntries,
    append_segment,
    latest_entries,
    next_offset,
    read_entries,
    write_excluded,
)
from app.crawl.reports.crawl_report import CrawlReport, read_report
from app.crawl.traps import TrapLimits
from app.crawl.urls import CrawlUrl, canonical_key
from app.errors import ObjectDamaged, PreconditionFailed, SecretMissing
from app.storage.layout import list_ids, page_id
from app.storage.store import ObjectStore

log = logging.getLogger(__name__)

#: States of the pages that belong in a crawl's pack: of the last three, what was stored before stays.
MEMBER_STATES = frozenset({"indexed", "unchanged", "skipped", "failed", "lost"})


@dataclass(frozen=True, slots=True)
class RecordSnapshot:
    """A crawl's record with the last entry of each page, by page id. `cut`: it did not follow all links.

    `lines` is the number of entries that the record had at least when it was read. `closed` are the directory patterns
    that identical texts closed.
    """

    record: CrawlRecord
    entries: Mapping[str, UrlEntry]
    cut: bool
    lines: int
    closed: frozenset[str] = frozenset()

    def __contains__(self, page_id: object) -> bool:
        """Return whether a page is in the crawl's pack: indexed, unchanged, or failed and kept."""
        entry = self.entries.get(str(page_id))
        return entry is not None and entry.state in MEMBER_STATES

    @property
    def failed(self) -> Iterator[UrlEntry]:
        """The pages that could not be fetched: what they lead to is unknown. Links are those of an earlier crawl."""
        return (entry for entry in self.entries.values() if entry.state in ("failed", "lost"))


#: Links whose pages' referrers are kept: most pages repeat the same ones.
_CACHED_LINKS = 50_000

#: Finished crawls of a domain whose records stay in the store: a trend can be seen, and the store does not grow.
KEPT_RECORDS = 5


class CrawlRecorder:
    """Writes the records of crawls; a record has the policy with which its crawl was started."""

    def __init__(self, frontier: Frontier, store: ObjectStore, policies: PolicyOfDomain) -> None:
        self._frontier = frontier
        self._store = store
        self._policies = policies

    def begin(
        self, crawl: Crawl, *, timer_timeout: float, callback: Mapping[str, Any], scheduled: bool = False
    ) -> None:
        """Record a crawl and store it in the frontier; one that has begun before keeps its first values.

        A `scheduled` crawl does not request pages that are not due.
        """
        policy = self._policies(crawl.domain)
        record = CrawlRecord(
            id=crawl.id,
            domain=crawl.domain,
            start_url=crawl.start_url,
            started=crawl.started,
            settings=policy.settings,
            seeds=policy.seeds,
            timer_timeout=timer_timeout,
            callback=callback,
            moves=crawl.moves,
            moved_from=crawl.moved_from,
            selection=policy.selection,
        )
        self._frontier.note_beginning(crawl.id)
        with suppress(PreconditionFailed):
            add_crawl(self._store, record)
            self._frontier.begin(crawl)
            self._note_former(record, longest=policy.max_page_interval, scheduled=scheduled)
            return
        # Its message comes again, and Redis may have lost it meanwhile.
        self.restore_crawl(record.ref)

    def _note_former(self, record: CrawlRecord, *, longest: float | None, scheduled: bool) -> None:
        """Give the frontier the validators of the domain's latest crawl that is done, if it selected links as this one.

        Otherwise the links of the stored pages are not those that this crawl follows, and it gets the sitemaps only.
        Without any that is done, it is the latest one that was cancelled.
        """
        finished = (each for each in list_crawls(self._store, record.domain) if each.is_finished)
        former = min(finished, key=lambda each: each.state != "done", default=None)
        if former is None:
            self._frontier.note_former(record.id, ())
            return
        self.flush(former.ref)
        entries = latest_entries(self._store, former.ref)
        same = former.selection == record.selection
        kept = (each for each in _with_found_links(entries) if same or is_sitemap(each))
        self._frontier.note_former(record.id, kept, longest=longest, scheduled=scheduled)

    def traps_of(self, domain: str) -> TrapLimits | None:
        """Return a domain's present budgets against traps; None while its site is damaged or its secret is missing."""
        with suppress(SecretMissing, ObjectDamaged):
            return self._policies(domain).traps
        return None

    def restore(self, target: CrawlUrl) -> bool:
        """Make the crawl of a page known to the frontier: from its record, or else from the page's message.

        Redis was lost, or the crawl expired in it. A restored crawl is swept: its backlog is found again. Return False
        for a crawl of a removed site, whose record is deleted.
        """
        if self.restore_crawl(CrawlRef(target.domain, target.crawl_id)) is None:
            if removed_at(self._store, target.domain) is not None:
                return False
            start = Crawl(target.crawl_id, target.domain, target.url, datetime.now(UTC), recorded=True)
            self._frontier.begin(start)
            self._frontier.note_cut(target.crawl_id)
        return True

    def restore_crawl(self, ref: CrawlRef) -> Crawl | None:
        """Make a recorded crawl known to the frontier and return it; None for one without a record."""
        record = read_crawl(self._store, ref)
        if record is None:
            return None
        crawl = Crawl(
            record.id,
            record.domain,
            record.start_url,
            record.started,
            record.moves,
            recorded=True,
            moved_from=record.moved_from,
        )
        if self._frontier.crawl(record.id) is None:
            self._frontier.note_restored(record.id, next_offset(self._store, ref))
            self._frontier.begin(crawl)
            self._frontier.set_state(record.id, "running" if record.state == "done" else record.state)
        return crawl

    def is_recorded(self, target: CrawlUrl) -> bool:
        """Return whether the crawl of a page began with `index+crawl`. A client's crawl has no record."""
        crawl = self._frontier.crawl(target.crawl_id)
        crawl = crawl or self.restore_crawl(CrawlRef(target.domain, target.crawl_id))
        return crawl is not None and crawl.recorded

    def add_to_latest(self, domain: str, entry: UrlEntry) -> None:
        """Add a page that was indexed outside of a crawl to its domain's latest crawl, so that its full pack has it."""
        crawl = self._frontier.latest(domain)
        if crawl and crawl.recorded and self._frontier.add_line(crawl.id, entry.to_line().decode()):
            self.write_segment(CrawlRef(domain, crawl.id))

    def has_unfinished(self, domain: str) -> bool:
        """Return whether a recorded crawl of a domain goes on or is paused, or waits for a sweep after a loss of Redis.

        One that Redis does not know counts as lost CRAWL_TTL seconds after its start.
        """
        for record in list_crawls(self._store, domain):
            if record.is_finished:
                continue
            if self._frontier.crawl(record.id) is None:
                if datetime.now(UTC) - record.started < timedelta(seconds=CRAWL_TTL):
                    return True
            elif self._frontier.figures(record.id).left:
                return True
        return False

    def snapshot(self, domain: str, crawl_id: str) -> RecordSnapshot | None:
        """Return what the record says of a crawl of a domain, complete up to now; None without a record.

        Raises InvalidMessage for a crawl of another domain.
        """
        crawl, ref = self._frontier.crawl_of(domain, crawl_id), CrawlRef(domain, crawl_id)
        self.flush(ref)
        record = read_crawl(self._store, ref)
        if record is None:
            return None
        figures = self._frontier.figures(crawl_id)
        cut = bool(record.counts.get("cut")) if crawl is None else figures.is_cut
        lines = next_offset(self._store, ref)
        entries = latest_entries(self._store, ref)
        cut = cut or figures.left > 0 or figures.is_restored or not entries.is_complete
        return RecordSnapshot(record, entries, cut, lines, figures.closed.union(record.closed))

    def met_since(self, former: RecordSnapshot) -> set[str]:
        """Return ids of the pages in the record that were added after it was read, and in those of later crawls.

        If one of these records is damaged, that may be any page: return the ids of all stored ones.
        """
        found: set[str] = set()
        unread: list[str] = []
        for record in list_crawls(self._store, former.record.domain):
            if record.started < former.record.started:
                break
            self.flush(record.ref)
            since = former.lines if record.id == former.record.id else 0
            found.update(entry.page_id for entry in read_entries(self._store, record.ref, since=since, unread=unread))
        return list_ids(self._store, former.record.domain) if unread else found

    def flush(self, ref: CrawlRef) -> None:
        """Write the lines of a crawl that wait in Redis, if any, to the store. Others may do so at the same time."""
        while self.write_segment(ref):
            pass

    def write_segment(self, ref: CrawlRef) -> int:
        """Write the lines of one segment of a crawl's record, if any wait; return how many wait then."""
        offset, lines = self._frontier.next_lines(ref.crawl_id)
        encoded = [line.encode() for line in lines]
        stored, among = append_segment(self._store, ref, offset, encoded)
        return self._frontier.note_stored_lines(ref.crawl_id, offset, stored, lines[:among]) if stored else 0

    def end(self, crawl: Crawl) -> bool:
        """Complete the record of a crawl that has nothing left to do, and close it; return whether that is so.

        A restored crawl does not end before its sweep: the pages of entries that Redis lost are to be found again. A
        page may be open again, too: a tick after a start of Redis, or a replay, has published it once more.
        """
        figures = self._frontier.figures(crawl.id)
        if figures.left or figures.is_restored:
            self._frontier.forget_end(crawl.id)
            return False
        ref = CrawlRef(crawl.domain, crawl.id)
        self.flush(ref)
        counts, closed = dict(figures.counts), tuple(sorted(figures.closed))
        report = read_report(self._frontier, self._store, crawl.domain, crawl_id=crawl.id)
        reasons = report.totals if report else {}
        if report:
            counts |= self._changes(report, is_cut=figures.is_cut)
        seconds = int((datetime.now(UTC) - crawl.started).total_seconds())
        if report and report.listed:
            write_excluded(self._store, ref, report.listed)

        def ended(record: CrawlRecord) -> CrawlRecord:
            # One that was paused while its last pages were in work is done, too.
            state: CrawlState = record.state if record.is_finished else "done"
            # The end may be handled twice, and the crawl has ended with the first one.
            took = {"seconds": record.counts.get("seconds", seconds)}
            return replace(record, state=state, counts={**counts, **took}, reasons=reasons, closed=closed)

        update_crawl(self._store, ref, ended)
        prune(self._store, crawl.domain, keep=KEPT_RECORDS)
        return self._frontier.close(crawl.id)

    def _changes(self, report: CrawlReport, *, is_cut: bool) -> dict[str, int]:
        """Return the numbers of `new`, `changed` and `gone` pages against the former crawl that is done.

        Empty without one, or where a part of either record cannot be read. A page that could not be fetched counts as
        unchanged, and so does one that a cut crawl did not meet.
        """
        record, after = report.record, report.entries
        earlier = (each for each in list_crawls(self._store, record.domain) if each.started < record.started)
        former = next((each for each in earlier if each.state == "done"), None)
        if former is None:
            return {}
        before = latest_entries(self._store, former.ref)
        if not before.is_complete or not after.is_complete:
            return {}
        counted = dict.fromkeys(("new", "changed", "gone"), 0)
        for entry in after.values():
            if entry.state in STORED_STATES:
                old = before.get(entry.page_id)
                counted["new"] += old is None or old.state not in MEMBER_STATES
                counted["changed"] += old is not None and old.state in STORED_STATES and entry.hash != old.hash
        for old in before.values():
            if old.state in STORED_STATES:
                now = after.get(old.page_id)
                counted["gone"] += not is_cut if now is None else now.state not in MEMBER_STATES
        return counted


def _with_found_links(entries: LatestEntries) -> Iterator[UrlEntry]:
    """Yield the entries, with those links only that no other page led to first: together no more than the pages."""

    @lru_cache(_CACHED_LINKS)
    def first_referrer(url: str) -> str | None:
        found = entries.get(page_id(canonical_key(url)))
        return None if found is None else found.referrer

    for entry in entries.values():
        if entry.links and entry.state != "redirected":
            entry.links = tuple(url for url in entry.links if first_referrer(url) in (None, entry.page_id))
        yield entry
