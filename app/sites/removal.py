"""Remove all that the store and Redis have of a domain: settings, pages, pack, crawl records, timers, crawls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from redis import Redis

from app.crawl.frontier.frontier import CRAWL_TTL, Frontier
from app.crawl.frontier.values import ACTIVE_CRAWLS, HOST_PREFIX, crawl_key, crawls_key, host_keys, latest_key
from app.crawl.record.crawls import CrawlRecord, list_crawls, update_crawl
from app.crawl.record.keys import domain_prefix, plain_id
from app.crawl.record.removed_sites import note_removed
from app.redis_state.client import PREFIX
from app.sites.search_reports import report_prefix
from app.sites.stored import site_key, start_key
from app.storage.layout import announcement_key, content_prefix, frames_prefix, manifest_key
from app.storage.reading import in_parallel
from app.storage.store import ObjectStore
from app.timers.stored import delete_stored_timers
from app.timers.timers import Timers

#: Keys of Redis in one deletion.
_BATCH: Final = 500
#: The start of a crawl of which only its id is known.
_NEVER: Final = "1970-01-01T00:00:00+00:00"


@dataclass(frozen=True, slots=True)
class SiteInventory:
    """What there is of a domain. `messages` are open ones and waiting pages of its crawls."""

    domain: str
    has_settings: bool
    pages: int
    packs: int
    crawls: int
    messages: int

    def __bool__(self) -> bool:
        return self.has_settings or any((self.pages, self.packs, self.crawls, self.messages))

    def __str__(self) -> str:
        settings = "its settings, " if self.has_settings else ""
        pack = "its pack, " if self.packs else ""
        return f"{settings}{pack}{self.pages} stored pages, {self.crawls} crawl records, {self.messages} open messages"


class SiteRemoval:
    """Removes a domain in two steps: `stop` ends its work, then `delete` removes it. Both can be repeated.

    Its messages stay in their queues, and workers drop them: to look for them would count as a delivery of every
    message of other sites.
    """

    def __init__(self, domain: str, store: ObjectStore, redis: Redis) -> None:
        self.domain = domain
        self._store = store
        self._redis = redis
        self._frontier = Frontier(redis)

    def inventory(self) -> SiteInventory:
        """Return what there is of the domain."""
        return SiteInventory(
            self.domain,
            has_settings=any(stat.key == site_key(self.domain) for stat in self._store.list(site_key(self.domain))),
            pages=sum(1 for _ in self._store.list(content_prefix(self.domain))),
            packs=len(self._packed() - {announcement_key(self.domain)}),
            crawls=len(list_crawls(self._store, self.domain)),
            messages=self._frontier.open_messages(self.domain),
        )

    def stop(self, *, at: int) -> None:
        """Cancel the crawls of the domain, and delete its settings, schedule and timer: no work begins any more.

        Messages that were published before `at`, in seconds since the epoch, are dropped. This is noted first.
        """
        note_removed(self._store, self.domain, at, unfinished=True)
        for key in (site_key(self.domain), start_key(self.domain)):
            self._store.delete(key)

        def cancelled(record: CrawlRecord) -> CrawlRecord:
            return replace(record, state="cancelled")

        for record in list_crawls(self._store, self.domain):
            update_crawl(self._store, record.ref, cancelled)
        for crawl_id in self._crawl_ids():
            self._frontier.set_state(crawl_id, "cancelled")
        Timers(self._redis).delete(self.domain)
        delete_stored_timers(self._store, [self.domain])

    def requests_in_flight(self) -> int:
        """Return the number of requests to the domain, and to hosts below it, that have not ended.

        One whose lease has expired counts as ended.
        """
        now, _ = self._redis.time()
        below = self._redis.scan_iter(f"{HOST_PREFIX}*.{self.domain}:flight", count=1_000)
        keys = (host_keys(self.domain)[1], *map(str, below))
        return sum(int(self._redis.zcount(key, now, "+inf")) for key in keys)

    def delete(self, *, at: int) -> None:
        """Delete all objects and keys of the domain, and its messages from before `at`.

        A mark of each crawl stays in Redis for a week: late messages of a crawl that is cancelled do nothing.
        """
        note_removed(self._store, self.domain, at, unfinished=True)
        ids = self._crawl_ids()
        # The manifest is deleted first: without it there is no pack, whatever else is left.
        for key in (*sorted(self._packed(), reverse=True), site_key(self.domain), start_key(self.domain)):
            self._store.delete(key)
        prefixes = (content_prefix(self.domain), domain_prefix(self.domain), report_prefix(self.domain))
        keys = [stat.key for prefix in prefixes for stat in self._store.list(prefix)]
        for _ in in_parallel(self._store.delete, keys, threads=self._store.parallel_requests):
            pass
        Timers(self._redis).delete(self.domain)
        delete_stored_timers(self._store, [self.domain])
        self._delete_keys(ids)

    def _packed(self) -> set[str]:
        """Return the keys of the domain's pack. The last one in their order is that of the manifest."""
        own = {manifest_key(self.domain), announcement_key(self.domain)}
        listed = {stat.key for stat in self._store.list(f"packs/{self.domain}.")}
        return (own & listed) | {stat.key for stat in self._store.list(frames_prefix(self.domain))}

    def _crawl_ids(self) -> set[str]:
        listed = {str(each) for each in self._redis.smembers(crawls_key(self.domain))}
        return listed | {record.id for record in list_crawls(self._store, self.domain)}

    def _delete_keys(self, crawl_ids: set[str]) -> None:
        marks = {crawl_key(each) for each in crawl_ids}
        below = tuple(f"{mark}:" for mark in marks)
        found = map(str, self._redis.scan_iter(f"{PREFIX}crawl:*", count=1_000))
        doomed = [key for key in found if key.startswith(below) and key not in marks]
        doomed += [latest_key(self.domain), crawls_key(self.domain), f"{PREFIX}swept:{self.domain}"]
        doomed += [*host_keys(self.domain), f"{HOST_PREFIX}{self.domain}:slots"]
        for scheme in ("http", "https"):
            robots = f"{PREFIX}robots:{scheme}://{self.domain}"
            doomed += [robots, f"{robots}:down"]
        doomed += [f"{PREFIX}robots-of:{self.domain}", f"{PREFIX}robots-of:{self.domain}:bytes"]
        for start in range(0, len(doomed), _BATCH):
            self._redis.delete(*doomed[start : start + _BATCH])
        if crawl_ids:
            self._redis.srem(ACTIVE_CRAWLS, *map(plain_id, crawl_ids))
            self._frontier.note_swept(crawl_ids)
        for crawl_id in crawl_ids:
            mark: dict[Any, Any] = {
                "id": crawl_id,
                "domain": self.domain,
                "state": "cancelled",
                "start": "",
                "began": _NEVER,
            }
            pipe = self._redis.pipeline()
            pipe.delete(crawl_key(crawl_id))
            pipe.hset(crawl_key(crawl_id), mapping=mark)
            pipe.expire(crawl_key(crawl_id), CRAWL_TTL)
            pipe.execute()
