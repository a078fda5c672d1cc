"""How far the first crawls of sites are, for visitors who cannot search these sites yet."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from redis import RedisError

from app.crawl.crawl_view import CrawlView
from app.state.client import get_quick_redis

#: Crawls that a page names.
MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class FirstCrawl:
    """A crawl of a site without a pack: pages that are done, of those that it has found so far."""

    domain: str
    done: int
    seen: int


class FirstCrawls(Protocol):
    """Looks for crawls of sites without a pack."""

    def __call__(self, domains: Collection[str] = (), *, packed: Collection[str] = ()) -> Sequence[FirstCrawl]:
        """Return the crawls of these domains that are under way; without any, of all domains but the packed ones."""


def no_crawls(domains: Collection[str] = (), *, packed: Collection[str] = ()) -> Sequence[FirstCrawl]:  # noqa: ARG001 (of the protocol)
    """Return no crawl."""
    return ()


class CrawlsInRedis:
    """The crawls of one Redis. While it does not answer, no crawl is known."""

    def __init__(self, redis_url: str) -> None:
        self._view = CrawlView(get_quick_redis(redis_url))

    def __call__(self, domains: Collection[str] = (), *, packed: Collection[str] = ()) -> Sequence[FirstCrawl]:
        """Return the crawls that are under way, at most MAX_SHOWN."""
        try:
            names = domains or [domain for domain in self._view.active_domains() if domain not in packed]
            found = [self._first_crawl(domain) for domain in list(names)[:MAX_SHOWN]]
        except RedisError:
            return ()
        return [crawl for crawl in found if crawl is not None]

    def _first_crawl(self, domain: str) -> FirstCrawl | None:
        progress = self._view.progress(domain)
        if progress.crawl is None or progress.state == "cancelled":
            return None
        return FirstCrawl(domain, progress.done + progress.dead, progress.seen)
