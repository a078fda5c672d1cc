"""The progress of the first crawls of sites, shown to visitors of sites that cannot be searched yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from redis import RedisError

from app.crawl.frontier.view import CrawlView
from app.redis_state.client import get_quick_redis

#: Crawls that a page names.
MAX_SHOWN = 5

#: Seconds for which an answer is kept, and the number of answers.
KEPT, _MAX_KEPT = 2.0, 1_000
#: Seconds that a page waits while another one asks Redis, and seconds without a further query after Redis was silent.
_PATIENCE, _PAUSE = 0.05, 5.0


@dataclass(frozen=True, slots=True)
class FirstCrawl:
    """A crawl of a site without a pack: pages that are done, of those that it has found so far."""

    domain: str
    done: int
    seen: int


#: Returns the crawls of these domains that are under way; without any, of all domains.
FirstCrawls = Callable[[Collection[str]], Sequence[FirstCrawl]]


class CrawlsInRedis:
    """The crawls of one Redis, each answer kept for KEPT seconds. While Redis does not answer, no crawl is known.

    One thread at a time asks Redis, so a Redis that is silent holds one thread of a server and no more.
    """

    def __init__(self, redis_url: str) -> None:
        self._view = CrawlView(get_quick_redis(redis_url))
        self._asking = threading.Lock()
        self._silent_until = 0.0
        #: By domains, the oldest first: when an answer expires, in monotonic seconds, and the answer.
        self._kept: dict[tuple[str, ...], tuple[float, Sequence[FirstCrawl]]] = {}

    def __call__(self, domains: Collection[str]) -> Sequence[FirstCrawl]:
        """Return the crawls that are under way, at most MAX_SHOWN."""
        key = tuple(domains)[:MAX_SHOWN]
        if not self._asking.acquire(timeout=_PATIENCE):
            return ()
        try:
            expires, crawls = self._kept.get(key, (0.0, ()))
            now = time.monotonic()
            if now < expires:
                return crawls
            if now < self._silent_until:
                return ()
            self._kept.pop(key, None)
            try:
                names = key or tuple(self._view.active_domains())[:MAX_SHOWN]
                found = [(domain, self._view.progress(domain)) for domain in names]
            except RedisError:
                self._silent_until = time.monotonic() + _PAUSE
                return ()
            crawls = [
                FirstCrawl(domain, progress.done + progress.dead, progress.seen)
                for domain, progress in found
                if progress.crawl is not None and progress.state != "cancelled"
            ]
            self._kept[key] = now + KEPT, crawls
            if len(self._kept) > _MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            return crawls
        finally:
            self._asking.release()
