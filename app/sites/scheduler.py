"""The scheduled crawls that are due: read from the sites in the store, whatever Redis has lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from app.errors import ObjectDamaged
from app.sites.site import Site
from app.sites.stored import SITES_PREFIX, Start, read_site, read_start, site_key, write_start
from app.storage.damage import isolated, note_damaged, note_quietly
from app.storage.store import ObjectStore

#: Time after which a site is looked at again whose crawl is due while another one runs.
_BUSY = timedelta(seconds=10)
#: Time after which the start of a crawl that has no record counts as lost.
START_LOST = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class DueCrawl:
    """A scheduled crawl that is due: its site, when it was due, and the start before it."""

    site: Site
    due: datetime
    former: Start | None

    @property
    def crawl_id(self) -> str:
        """The crawl's id. It follows from the site and the time, so two workers post the same crawl."""
        return f"{self.site.domain.replace(':', '-')}-{self.due.astimezone(UTC):%Y%m%dT%H%M%SZ}"


class CrawlScheduler:
    """Finds due crawls. An unchanged site, and the last start of one that is not due, are not read again."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._sites: dict[str, tuple[str, Site | ObjectDamaged | None]] = {}
        self._next: dict[str, datetime] = {}

    def due(self, now: datetime) -> Iterator[DueCrawl]:
        """Yield the crawls that are due at `now`, whatever runs; raises StoreError."""
        listed = {stat.key: stat.etag for stat in self._store.list(SITES_PREFIX)}
        for key in self._sites.keys() - listed.keys():
            del self._sites[key]
            self._next.pop(key, None)
        for key, etag in listed.items():
            found = None
            with isolated(self._store, "%s: whether a crawl of this site is due is unknown", key):
                site = self._site(key, etag)
                if site is None or self._next.get(key, now) > now:
                    continue
                former = read_start(self._store, site.domain)
                following = site.next_start(former.at if former else None)
                if following is not None:
                    self._next[key] = following
                    found = DueCrawl(site, following, former)
            if found is not None and found.due <= now:
                yield found

    def postpone(self, crawl: DueCrawl, *, now: datetime) -> None:
        """Leave a due crawl out for some seconds: another one of its site runs."""
        self._next[site_key(crawl.site.domain)] = now + _BUSY

    def note_started(self, crawl: DueCrawl, *, at: datetime) -> None:
        """Note that the message of a due crawl is published: what else was due until `at` is left out."""
        write_start(self._store, crawl.site.domain, Start(at, crawl.crawl_id))

    def _site(self, key: str, etag: str) -> Site | None:
        """Return a site, or None for a damaged one; it is read again when its ETag has changed."""
        former_etag, site = self._sites.get(key, ("", None))
        if former_etag != etag:
            try:
                site = read_site(self._store, key.removeprefix(SITES_PREFIX).removesuffix(".json"))
            except ObjectDamaged as error:
                note_damaged(self._store, error)
                site = error
            self._sites[key] = (etag, site)
            self._next.pop(key, None)
        if isinstance(site, ObjectDamaged):  # Again at each look, since Redis may have lost the note.
            note_quietly(self._store, site)
            return None
        return site
