"""Compare crawl records, stored pages and manifests with Redis, and begin again what Redis lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.values import FetchedPage, FrontierUrl, is_sitemap
from app.crawl.record.crawls import CrawlRecord, list_crawls
from app.crawl.record.entries import STORED_STATES, UrlEntry
from app.crawl.record.reasons import Reason
from app.crawl.record.segments import LatestEntries, latest_entries
from app.crawl.recorder import CrawlRecorder
from app.crawl.traps import soft_404_check_url, text_hash
from app.crawl.urls import SITEMAP, SOFT_404_CHECK, canonical_key, robots_url
from app.pack.manifest import readable_manifest
from app.sites.status import lacks_pack
from app.storage.damage import decoded_if_intact, isolated
from app.storage.layout import CONTENT_PREFIX, CONTENT_VERSION, Page, content_key, content_of, content_prefix
from app.storage.reading import read_objects
from app.storage.store import ObjectStore
from app.timers.stored import stored_timers
from app.timers.timers import Callback, Timers, incremental_pack_callback
from config.routes import PACK

#: Canonical keys of links that are kept: most pages repeat the same ones.
_CACHED_KEYS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Action:
    """What a sweep did for a domain, in words."""

    domain: str
    text: str

    def __str__(self) -> str:
        return f"{self.domain}: {self.text}"


@dataclass(frozen=True, slots=True)
class Sweep:
    """Begins again what is due of one domain or of all: crawls, packs and timers. `timeout` is in seconds."""

    store: ObjectStore
    frontier: Frontier
    timers: Timers
    recorder: CrawlRecorder
    timeout: float

    def run(self, domain: str = "") -> Iterator[Action]:
        """Yield what was done for a domain, or for each domain with a record, a page or a timer in the store.

        An error of one domain is logged and raised at the end.
        """
        errors: list[Exception] = []
        failed, swept = set(), list[str]()
        domains = {domain}
        if not domain:
            domains = {crawl.domain for crawl in list_crawls(self.store)}
            domains.update(timer.domain for timer in stored_timers(self.store))
            domains.update(self.store.list_folders(CONTENT_PREFIX))
        for name in sorted(domains):
            failed.add(name)
            with isolated(self.store, "%s: the sweep failed; the other sites go on", name, errors=errors):
                crawls = list_crawls(self.store, name)
                yield from self._resume_crawls(name, crawls)
                yield from self._start_timers(name, crawls)
                failed.remove(name)
        for crawl_id in self.frontier.restored():
            crawl = self.frontier.crawl(crawl_id)
            if crawl is None or (domain in ("", crawl.domain) and crawl.domain not in failed):
                swept.append(crawl_id)
        self.frontier.note_swept(swept)
        if errors:
            raise errors[0]

    def _resume_crawls(self, domain: str, crawls: Sequence[CrawlRecord]) -> Iterator[Action]:
        """Find the backlogs of the domain's unfinished crawls again, as far as Redis does not know them.

        From the start page it walks over a crawl's fetched pages: what they lead to and is not fetched, waits. A page
        whose links are unknown is fetched again.
        """
        # Oldest first: the last one to begin is the domain's latest.
        for record in reversed([crawl for crawl in crawls if not crawl.is_finished]):
            if self.frontier.crawl(record.id) is None:
                if self.frontier.is_beginning(record.id):
                    continue
            elif record.id not in self.frontier.restored():
                continue
            self.recorder.restore_crawl(record.ref)
            entries = latest_entries(self.store, record.ref)
            # The stored pages are read twice, since what is fetched must be noted first, and all links together may be
            # larger than memory.
            waiting = self.frontier.rebuild(
                record.id,
                self._fetched(record, entries),
                self._waiting(record, entries),
                (canonical_key(entry.url) for entry in _pages_of(entries) if entry.state == "failed"),
                # The record has few links beyond the limit: they show that the crawl is cut.
                max_pages=record.settings.max_pages,
                traps=self.recorder.traps_of(record.domain),
            )
            yield Action(domain, f"crawl {record.id} is {record.state}: {waiting} pages wait in its backlog again")

    def _fetched(self, record: CrawlRecord, entries: LatestEntries) -> Iterator[FetchedPage]:
        """Yield the pages that need no further request."""
        for entry, page in self._with_content(record, entries):
            if entry.state != "failed" and _links_of(entry, page) is not None:
                text = text_hash(page.title, page.body, page.path) if page and entry.state == "indexed" else ""
                yield FetchedPage(canonical_key(entry.url), entry.state in STORED_STATES, text)

    def _waiting(self, record: CrawlRecord, entries: LatestEntries) -> Iterator[FrontierUrl]:
        """Yield the soft-404 check, the start pages, what fetched pages lead to, and the robots.txt with the sitemaps.

        The record does not have what the check and the sitemaps said.
        """
        if check := soft_404_check_url(record.start_url, record.id):
            yield FrontierUrl(check, canonical_key(check), 1, role=SOFT_404_CHECK)
        yield FrontierUrl(record.start_url, canonical_key(record.start_url), 0)
        yield from (FrontierUrl(url, canonical_key(url), 1) for url in record.seeds)
        key_of = lru_cache(_CACHED_KEYS)(canonical_key)
        for entry, page in self._with_content(record, entries):
            # This changes nothing for a page that is fetched.
            yield FrontierUrl(entry.url, canonical_key(entry.url), entry.depth, entry.referrer)
            if entry.depth < record.settings.max_depth:
                links = _links_of(entry, page) or ()
                yield from (FrontierUrl(url, key_of(url), entry.depth + 1, entry.page_id) for url in links)
        names_sitemaps = robots_url(record.start_url)
        yield FrontierUrl(names_sitemaps, canonical_key(names_sitemaps), 1, role=SITEMAP)

    def _with_content(self, record: CrawlRecord, entries: LatestEntries) -> Iterator[tuple[UrlEntry, Page | None]]:
        """Yield each page that the crawl requested, with its stored page; None for one that is missing or damaged."""
        stored = (entry for entry in _pages_of(entries) if entry.state in STORED_STATES)
        objects = read_objects(self.store, (content_key(record.domain, entry.page_id) for entry in stored))
        for entry in _pages_of(entries):
            content = None
            if entry.state in STORED_STATES:
                key, found = next(objects)
                content = decoded_if_intact(self.store, key, found, content_of)
            yield entry, content if isinstance(content, Page) else None

    def _start_timers(self, domain: str, crawls: Sequence[CrawlRecord]) -> Iterator[Action]:
        """Start the domain's timer, unless it runs, if a pack is due or a client's timer was lost."""
        if self.timers.running(domain) is not None:
            return
        latest = crawls[0] if crawls else None
        manifest = readable_manifest(self.store, domain)
        built_at = datetime.fromisoformat(manifest.built_at) if manifest else datetime.min.replace(tzinfo=UTC)
        timeout, callback = self.timeout, None
        if stored := next(stored_timers(self.store, domain), None):
            timeout, callback = stored.timeout, stored.callback
        elif latest and latest.callback and (not latest.is_finished or lacks_pack(latest, manifest)):
            timeout, callback = latest.timer_timeout, Callback(PACK, dict(latest.callback))
        elif any(stat.modified >= built_at for stat in self.store.list(content_prefix(domain))):
            callback = incremental_pack_callback(domain)
        if callback is not None:
            self.timers.start(domain, timeout=timeout, callback=callback)
            yield Action(domain, f"timer started: {callback.message['type']} in {timeout:g} s")


def _pages_of(entries: LatestEntries) -> Iterator[UrlEntry]:
    return (entry for entry in entries.values() if not is_sitemap(entry) and entry.reason != Reason.SOFT_404_CHECK)


def _links_of(entry: UrlEntry, page: Page | None) -> Sequence[str] | None:
    """Return the URLs that a requested page leads to, or None if it must be fetched again to know them."""
    if entry.state in STORED_STATES:
        return [link.url for link in page.links] if page and page.version == CONTENT_VERSION else None
    return None if entry.state == "lost" else entry.links
