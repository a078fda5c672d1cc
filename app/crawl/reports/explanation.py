"""Explain one URL: where it is in the crawl, its reason, and what is stored of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.values import Failures, MessageKind
from app.crawl.record.crawls import list_crawls
from app.crawl.record.entries import UrlEntry
from app.crawl.record.segments import read_entries, read_excluded
from app.crawl.reports.crawl_report import read_report
from app.crawl.urls import SITEMAP, CrawlUrl, frontier_key
from app.errors import ObjectDamaged
from app.storage.layout import Page, Tombstone, content_key, page_id, read_content
from app.storage.store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The state of one URL. `crawled` says where its messages are, `stored` what the store has, both in words.

    `states` has the state of each message of its page. `entry` is its last entry in the crawl's record, None without
    one. `next_attempt` is in seconds since the epoch, None unless it waits for a retry.
    """

    url: str
    canonical: str
    domain: str
    crawl_id: str | None
    states: dict[MessageKind, str]
    crawled: str
    entry: UrlEntry | None
    referrer: str
    failures: Failures | None
    next_attempt: float | None
    stored: str

    def as_json(self) -> dict[str, Any]:
        """Return what `perennial explain --json` prints."""
        return {
            "url": self.url,
            "canonical": self.canonical,
            "domain": self.domain,
            "stored": self.stored,
            "crawl": {"id": self.crawl_id, **self.states} if self.crawl_id else None,
            "explanation": self.crawled,
            "recorded": asdict(self.entry) if self.entry else None,
            "reason": self.entry.code if self.entry else None,
            "referrer": self.referrer or None,
            "failures": asdict(self.failures) if self.failures else None,
            "next_attempt": self.next_attempt,
        }


def explain_url(frontier: Frontier, store: ObjectStore, page: CrawlUrl, *, retry_ms: int) -> Explanation:
    """Return the explanation of a page, or of a sitemap that is no page.

    `retry_ms` is the first retry delay, which each further one doubles.
    """
    progress = frontier.progress(page.domain)
    crawl = progress.crawl
    report = read_report(frontier, store, page.domain)
    for key in (page.canonical_key, frontier_key(page.canonical_key, SITEMAP)):
        entry, own_id = None, page_id(key)
        if report:
            listed = (each for each in report.listed if each.page_id == own_id)
            entry = report.entries.get(own_id) or next(listed, None)
        states = frontier.page_state(crawl.id, key) if crawl else {}
        if entry or states:
            break
    noted = [frontier.failures(crawl.id, kind, key) for kind in states] if crawl else []
    failures = max(filter(None, noted), key=lambda each: (each.at, each.number), default=None)
    next_attempt = failures.next_attempt(retry_ms) if failures else None
    source = report.entries.get(entry.referrer) if report and entry else None
    crawl_id = crawl.id if crawl else (report.record.id if report else None)
    return Explanation(
        url=page.url,
        canonical=page.canonical_key,
        domain=page.domain,
        crawl_id=crawl_id,
        states=states,
        crawled=_crawled(crawl_id, states, failures, next_attempt, waiting=progress.waiting, state=progress.state),
        entry=entry,
        referrer=source.url if source else "",
        failures=failures,
        next_attempt=next_attempt,
        stored=_stored(store, page.domain, page_id(page.canonical_key)),
    )


@dataclass(frozen=True, slots=True)
class PastEntry:
    """What one crawl recorded of a URL. `started` is ISO 8601, `state` that of the crawl; no `entry`: nothing."""

    crawl_id: str
    started: str
    state: str
    entry: UrlEntry | None


def url_history(frontier: Frontier, store: ObjectStore, page: CrawlUrl) -> list[PastEntry]:
    """Return what the recorded crawls of its domain say of a page, the latest crawl first.

    Reads these records from end to end.
    """
    own = {page_id(page.canonical_key), page_id(frontier_key(page.canonical_key, SITEMAP))}
    found = []
    for record in list_crawls(store, page.domain):
        _, lines = frontier.buffered_lines(record.id, -1)
        buffered = (UrlEntry.from_line(line.encode()) for line in lines)
        entries = chain(read_excluded(store, record.ref), read_entries(store, record.ref), buffered)
        entry = None
        for each in entries:
            entry = each if each.page_id in own else entry
        found.append(PastEntry(record.id, record.started.isoformat(), record.state, entry))
    return found


def _crawled(
    crawl_id: str | None,
    states: dict[MessageKind, str],
    failures: Failures | None,
    next_attempt: float | None,
    *,
    waiting: int,
    state: str,
) -> str:
    if crawl_id is None:
        return "never crawled"
    text = f"{crawl_id}: " + (", ".join(f"{kind} {name}" for kind, name in states.items()) or "not seen")
    if "waiting" in states.values():
        text += f"; {waiting} pages wait in the backlog" + (f", and the crawl is {state}" if state != "running" else "")
    if failures is not None and next_attempt is not None:
        since = datetime.fromtimestamp(failures.at, UTC).isoformat(timespec="seconds")
        until = datetime.fromtimestamp(next_attempt, UTC).isoformat(timespec="seconds")
        text += f"; {failures}; waits since {since}, next attempt at {until} or later"
    return text


def _stored(store: ObjectStore, domain: str, own_id: str) -> str:
    try:
        content = read_content(store, content_key(domain, own_id))
    except ObjectDamaged as error:
        return f"damaged ({error})"
    match content:
        case Page(title=title):
            return f"page {title!r}"
        case Tombstone(why=why):
            return f"gone ({why})"
    return "nothing"
