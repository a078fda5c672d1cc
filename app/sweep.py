"""Compare crawl records, stored pages and manifests with Redis, and begin again what Redis lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from app.crawl.crawl_records import MEMBER_STATES, CrawlRecords
from app.crawl.frontier import Frontier
from app.crawl.frontier_values import PROBE, SITEMAP, FetchedPage, FoundPage, is_sitemap
from app.crawl.politeness import robots_url
from app.crawl.traps import probe_url, text_hash
from app.crawl.urls import canonical_key
from app.crawl_record.crawls import CrawlRecord, list_crawls
from app.crawl_record.entries import UrlEntry
from app.crawl_record.reasons import Reason
from app.crawl_record.segments import latest_entries
from app.errors import PackError
from app.pack.manifest import read_manifest
from app.storage.layout import CONTENT_PREFIX, CONTENT_VERSION, Page, content_key, content_prefix, from_json
from app.storage.reading import read_objects
from app.storage.store import ObjectStore, StoredObject
from app.timers.stored import stored_timers
from app.timers.timers import Callback, Timers, full_pack, incremental_pack
from config.routes import PACK


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
    records: CrawlRecords
    timeout: float

    def run(self, domain: str = "") -> Iterator[Action]:
        """Yield what was done for a domain, or for each domain with a record, a page or a timer in the store."""
        for name in [domain] if domain else self._domains():
            crawls = list_crawls(self.store, name)
            yield from self._resume_crawls(name, crawls)
            yield from self._start_timers(name, crawls)
        swept = [each for each in self.frontier.restored() if not domain or self._is_of(each, domain)]
        self.frontier.note_swept(swept)

    def _domains(self) -> list[str]:
        stored = {each.domain for each in stored_timers(self.store)}
        crawled = {crawl.domain for crawl in list_crawls(self.store)}
        return sorted(crawled | stored | set(self.store.list_folders(CONTENT_PREFIX)))

    def _is_of(self, crawl_id: str, domain: str) -> bool:
        crawl = self.frontier.crawl(crawl_id)
        return crawl is None or crawl.domain == domain

    def _resume_crawls(self, domain: str, crawls: Sequence[CrawlRecord]) -> Iterator[Action]:
        """Find the backlogs of the domain's unfinished crawls again, as far as Redis does not know them."""
        # Oldest first: the last one to begin is the domain's latest.
        for record in reversed([crawl for crawl in crawls if not crawl.is_finished]):
            if self.frontier.crawl(record.id) is not None and record.id not in self.frontier.restored():
                continue
            self.records.restore_crawl(record.ref)
            waiting = self._rebuild(record)
            yield Action(domain, f"crawl {record.id} is {record.state}: {waiting} pages wait in its backlog again")

    def _rebuild(self, record: CrawlRecord) -> int:
        """Walk from the start page over the crawl's fetched pages; what they lead to and is not fetched, waits.

        A page that a former release stored, without its links, is fetched again.
        """
        entries = latest_entries(self.store, record.ref)
        keys = {content_key(record.domain, page_id): entry for page_id, entry in entries.items()}
        fetched, dead, waiting = [], [], [FoundPage(record.start_url, canonical_key(record.start_url), 0)]
        waiting += [FoundPage(url, canonical_key(url), 1) for url in record.seeds]
        for key, stored in read_objects(self.store, keys):
            entry = keys[key]
            if is_sitemap(entry) or entry.reason == Reason.PROBE:
                continue
            urls = _urls_of(entry, stored)
            if urls is None:
                waiting.append(FoundPage(entry.url, canonical_key(entry.url), entry.depth, entry.referrer))
                continue
            if entry.state == "failed":
                dead.append(canonical_key(entry.url))
            else:
                fetched.append(_fetched_page(entry, stored))
            if entry.depth < record.settings.max_depth:
                waiting += [FoundPage(url, canonical_key(url), entry.depth + 1, entry.page_id) for url in urls]
        # The probe comes first again, and sitemaps are read again: the record has not what they said.
        if probe := probe_url(record.start_url, record.id):
            waiting.insert(0, FoundPage(probe, canonical_key(probe), 1, role=PROBE))
        names_sitemaps = robots_url(record.start_url)
        waiting.append(FoundPage(names_sitemaps, canonical_key(names_sitemaps), 1, role=SITEMAP))
        return self.frontier.rebuild(record.id, fetched, waiting, dead, traps=self.records.traps_of(record.domain))

    def _start_timers(self, domain: str, crawls: Sequence[CrawlRecord]) -> Iterator[Action]:
        """Start the domain's timer, unless it runs, if a pack is due or a client's timer was lost."""
        if self.timers.running(domain) is not None:
            return
        timeout, callback = self.timeout, None
        stored = next((each for each in stored_timers(self.store, domain)), None)
        if stored is not None:
            timeout, callback = stored.timeout, stored.callback
        elif crawls and (crawls[0].state in ("running", "paused") or self._is_unpacked(crawls[0])):
            timeout = crawls[0].timer_timeout
            callback = (
                Callback(PACK, dict(crawls[0].callback)) if crawls[0].callback else full_pack(domain, crawls[0].id)
            )
        elif self._has_new_content(domain):
            callback = incremental_pack(domain)
        if callback is not None:
            self.timers.start(domain, timeout=timeout, callback=callback)
            yield Action(domain, f"timer started: {callback.message['type']} in {timeout:g} s")

    def _is_unpacked(self, crawl: CrawlRecord) -> bool:
        try:
            manifest = read_manifest(self.store, crawl.domain)
        except PackError:
            return True
        return (
            not crawl.packed
            and manifest.crawl_id != crawl.id
            and datetime.fromisoformat(manifest.built_at) < crawl.started
        )

    def _has_new_content(self, domain: str) -> bool:
        try:
            built_at = datetime.fromisoformat(read_manifest(self.store, domain).built_at)
        except PackError:
            built_at = datetime.min.replace(tzinfo=UTC)
        return any(stat.modified >= built_at for stat in self.store.list(content_prefix(domain)))


def _fetched_page(entry: UrlEntry, stored: StoredObject | None) -> FetchedPage:
    content = from_json(stored.data) if stored and entry.state == "indexed" else None
    text = text_hash(content.title, content.body, content.path) if isinstance(content, Page) else ""
    return FetchedPage(canonical_key(entry.url), entry.state in MEMBER_STATES, text)


def _urls_of(entry: UrlEntry, stored: StoredObject | None) -> tuple[str, ...] | None:
    """Return the URLs that a fetched page leads to, or None if it must be fetched again to know them."""
    if entry.state == "lost":
        return None
    content = from_json(stored.data, parts=True) if stored else None
    if entry.state in ("indexed", "unchanged") and isinstance(content, Page):
        return tuple(link.url for link in content.links) if content.version >= CONTENT_VERSION else None
    return entry.links
