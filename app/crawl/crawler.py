"""Visits pages and stores what they came to: rules, politeness and the shared GET in one place."""

from __future__ import annotations

from redis import Redis

from app.broker.errors import Postpone
from app.crawl.extract.choose import extractor
from app.crawl.fetch import Fetcher
from app.crawl.frontier import Kind
from app.crawl.politeness import HostGate
from app.crawl.robots_cache import RobotsCache
from app.crawl.shared_get import SharedGet
from app.crawl.target import Target
from app.crawl.urls import Scope, domain_of
from app.crawl.values import Gone, Indexed, Redirected, Skipped, Visit
from app.crawl.visit import Limits, classify
from app.errors import ObjectNotFound, ServerError
from app.storage.layout import Tombstone, content_key, page_id, to_json
from app.storage.store import ObjectStore
from config.settings import Settings


class Crawler:
    """One per process: it owns the HTTP connections."""

    def __init__(self, *, settings: Settings, redis: Redis, raw_redis: Redis, store: ObjectStore) -> None:
        self._settings = settings
        self._store = store
        self._fetcher = Fetcher.of(settings)
        self._gate = HostGate(redis)
        self._robots = RobotsCache(
            redis, self._fetcher, user_agent=settings.user_agent, max_crawl_delay=settings.crawl_delay_max
        )
        self._shared = SharedGet(raw_redis, ttl=settings.response_ttl)
        self._extractor = extractor(settings.extractor)
        self._limits = Limits.of(settings)

    def visit(self, target: Target, kind: Kind) -> Visit | None:
        """Return what a page came to; None where this message of its crawl was worked on already.

        Within a crawl, one GET serves both messages of a page.
        Raises Postpone while the host or another worker is busy, ServerError, ConnectionFailed, ResponseTimeout and
        RobotsUnavailable when it may go better later, ForbiddenAddress when it will not.
        """
        if not target.crawl_id:
            return self._get(target)
        return self._shared.visit(target.crawl_id, kind, target.key, lambda: self._get(target))

    def keep(self, target: Target, visit: Visit) -> str:
        """Store what a visit found; return the page's id where the page belongs to its crawl's pack, else ''."""
        page = page_id(target.key)
        match visit:
            case Indexed(page=content):
                self._store.put(content_key(target.domain, page), to_json(content))
            case Gone(why=why):
                self._bury(target, page, why)
                return ""
            case Redirected():
                self._bury(target, page, "redirect")
                return ""
            case Skipped():
                pass
        return page

    def _get(self, target: Target) -> Visit:
        rules = self._robots.rules(target.url)
        if not rules.allows(target.url):
            return Skipped(why="robots", detail=f"robots.txt disallows {target.url}")
        host = domain_of(target.url)
        wait = self._gate.wait(host, asker=target.key, delay=max(self._settings.host_delay, rules.crawl_delay or 0))
        if wait > 0:
            raise Postpone(wait, f"{host} is visited once every few seconds")
        try:
            response = self._fetcher.get(target.url)
            return classify(response, scope=self._scope(target), extractor=self._extractor, limits=self._limits)
        except ServerError as error:
            self._gate.hold(host, error.retry_after or 0)
            raise

    def _scope(self, target: Target) -> Scope:
        return Scope(target.domain, mode=self._settings.scope)

    def _bury(self, target: Target, page: str, why: str) -> None:
        """Leave a tombstone where a page stood; a page that never was needs none."""
        key = content_key(target.domain, page)
        try:
            self._store.stat(key)
        except ObjectNotFound:
            return
        self._store.put(
            key, to_json(Tombstone(canonical_key=target.key, url=target.url, domain=target.domain, why=why))
        )
