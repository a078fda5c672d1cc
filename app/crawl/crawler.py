"""Fetch one page and store the result: robots.txt, host rate limit, single flight and tombstones."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from redis import Redis

from app.broker.errors import Postpone
from app.crawl.fetch.clients import SiteClients
from app.crawl.fetch.robots import RobotsRules, robots_url
from app.crawl.frontier.host_limits import HostRateLimiter
from app.crawl.frontier.robots_cache import RobotsCache
from app.crawl.frontier.single_flight import SingleFlight
from app.crawl.frontier.values import Host, MessageKind
from app.crawl.policy import CrawlPolicy, Policies, policies_without_sites
from app.crawl.read.classify import (
    FetchResult,
    Gone,
    Indexed,
    Limits,
    Redirected,
    Skipped,
    Unchanged,
    classify,
    content_hash,
    not_due,
    not_modified,
    same_content,
    without_content,
)
from app.crawl.read.cpu_limit import MAX_CPU_SECONDS, cpu_limit
from app.crawl.read.extract.extractors import extractor
from app.crawl.read.sitemaps import DEFAULT_PATH, MAX_BYTES, ReadSitemap, sitemap_of
from app.crawl.record.former import Former
from app.crawl.record.reasons import Reason
from app.crawl.traps import error_hash, probe_url
from app.crawl.urls import Scope, Target, allows_port, host_of, resolve
from app.errors import FetchError, ObjectNotFound, ServerError
from app.http.fetcher import Fetcher
from app.http.response import Response
from app.storage.damage import readable
from app.storage.layout import CONTENT_VERSION, Page, Tombstone, content_key, content_of, page_id, to_json
from app.storage.store import ObjectStore
from config.settings import Settings

log = logging.getLogger(__name__)

#: The status of a page that is as the validators of the request say.
NOT_MODIFIED = 304
#: Redirects that an `index` outside of a crawl follows; within a crawl each hop is a page of its own.
_MAX_HOPS = 10
#: Times that a start page may redirect its crawl to another host.
MAX_MOVES = 10

#: Statuses by which a site says that there is no sitemap.
_NO_SITEMAP = frozenset({404, 410})


class Probed(NamedTuple):
    """The response for a page that does not exist: `text` is its `error_hash`, or empty if it is a proper error."""

    text: str = ""
    status: int = 0
    detail: str = ""


class Crawler:
    """Fetches and stores pages; one per process, which owns its HTTP connections."""

    def __init__(
        self,
        *,
        settings: Settings,
        redis: Redis,
        raw_redis: Redis,
        store: ObjectStore,
        policies: Policies | None = None,
    ) -> None:
        self._store = store
        self._policies = policies or policies_without_sites(settings)
        self._getters = SiteClients(settings)
        self._rate_limiter = HostRateLimiter(redis)
        self._robots = RobotsCache(
            redis,
            Fetcher.of(settings),
            self._rate_limiter,
            user_agent=settings.user_agent,
            max_crawl_delay=settings.crawl_delay_max,
            delay=settings.host_delay,
            concurrency=settings.host_concurrency,
            ports=settings.allow_ports,
        )
        self._single_flight = SingleFlight(raw_redis)
        self._extractor = extractor("lexbor")
        self._limits = Limits.of(settings)
        self._probes = settings.soft_404_probe

    def fetch(
        self, target: Target, kind: MessageKind, *, too_complex: bool = False, former: Former | None = None
    ) -> FetchResult | None:
        """Return the result for a page of a client's own message; None where it is already completed in its crawl.

        Within a crawl, one GET serves the messages `index` and `crawl` of a page. Raises Postpone while the host or
        another worker is busy, and what `get` raises; InvalidMessage for a crawl of another domain.
        """

        def get() -> FetchResult:
            if too_complex or target.canonical_key in self._policies(target.domain).blocked:
                return self.get(target, too_complex=too_complex)
            host = self.host(target)
            wait = self._rate_limiter.reserve(host, requester=target.canonical_key)
            if wait > 0:
                raise Postpone(wait, f"{host.name} gets one request in {host.delay:g} s")
            try:
                return self.get(target, former=former)
            finally:
                self._rate_limiter.release(host, requester=target.canonical_key)

        if not target.crawl_id:
            return get()
        return self._single_flight.fetch(target.crawl_id, kind, target.canonical_key, get, domain=target.domain)

    def host(self, target: Target) -> Host:
        """Return a page's host with its politeness; raises RobotsUnavailable, and Postpone during another's request."""
        name, policy = host_of(target.url), self._policies(target.domain)
        rules = self._rules(target, policy)
        delay = max(policy.settings.host_delay, rules.crawl_delay or 0)
        return Host(name, delay, 1 if delay else policy.settings.host_concurrency, own=name == target.domain)

    def _rules(self, target: Target, policy: CrawlPolicy) -> RobotsRules:
        getter = self._getters.of(policy.request)
        return self._robots.rules(target.url, getter, policy.settings, domain=target.domain)

    def get(self, target: Target, *, too_complex: bool = False, former: Former | None = None) -> FetchResult:
        """Request a page now and classify the response. The caller has waited for the host.

        With `former`, the request is conditional if the stored page is the one that the former crawl found.
        With `too_complex`, the page is skipped without a request: it took its last run more CPU time than a page may.
        ServerError, ConnectionFailed, ResponseTimeout and RobotsUnavailable may pass with time; ForbiddenAddress does
        not.
        """
        if too_complex:
            return Skipped(why=Reason.TOO_COMPLEX, detail=f"it took over {MAX_CPU_SECONDS:g} s of CPU")
        policy = self._policies(target.domain)
        if target.canonical_key in policy.blocked:
            return Gone(why=Reason.BLOCKED)
        getter = self._getters.of(policy.request)
        rules = self._rules(target, policy)
        if not rules.allows(target.url):
            return Gone(why=Reason.ROBOTS, detail=rules.denial(target.url))
        stored, data = self._stored(target, former) if former else (None, b"")
        try:
            response = getter.get(target.url, headers=former.headers if former and stored else None)
            if former and stored and response.status == NOT_MODIFIED:
                return not_modified(response, stored, former)
            result = self._classify(response, policy.scope)
        except ServerError as error:
            self._rate_limiter.pause(host_of(target.url), error.retry_after or 0)
            raise
        if stored and isinstance(result, Indexed) and to_json(result.page) == data:
            return same_content(result)
        return result

    def _stored(self, target: Target, former: Former) -> tuple[Page | None, bytes]:
        """Return the stored page and its bytes, None if it is damaged, or not the one that the former crawl found."""
        key = content_key(target.domain, page_id(target.canonical_key))
        try:
            stored = self._store.get(key)
        except ObjectNotFound:
            return None, b""
        content = readable(self._store, key, stored, content_of)
        if not isinstance(content, Page) or content.version != CONTENT_VERSION or content.url != target.url:
            return None, b""
        return (content, stored.data) if content_hash(content) == former.hash else (None, b"")

    def not_due(self, target: Target, former: Former) -> Unchanged | None:
        """Return the result of a page that is not due, None if it must be requested.

        It must if it is not stored as the former crawl found it, or if robots.txt or the site forbid it now.
        """
        policy = self._policies(target.domain)
        rules = self._rules(target, policy)
        if target.canonical_key in policy.blocked or not rules.allows(target.url):
            return None
        stored, _ = self._stored(target, former)
        return not_due(stored, former) if stored else None

    def names_of_sitemaps(self, target: Target) -> tuple[str, ...]:
        """Return the URL of the robots.txt that names the sitemaps of a start page."""
        return (robots_url(target.url),)

    def read_sitemap(self, target: Target) -> ReadSitemap:
        """Return the content of a sitemap, or the sitemaps that a robots.txt names, without a request of its own.

        The caller has waited for the host. Raises what `get` raises. `/sitemap.xml` that no robots.txt names is
        requested once, without retries. An index file may name sitemaps of its own host and of the crawl's scope.
        """
        policy = self._policies(target.domain)
        getter = self._getters.of(policy.request)
        rules = self._rules(target, policy)
        default = robots_url(target.url).removesuffix("/robots.txt") + DEFAULT_PATH
        is_named = target.url != default or default in rules.sitemaps
        if target.url == robots_url(target.url):
            named = tuple(url for each in rules.sitemaps if (url := resolve(target.url, each))) or (default,)
            allowed = self._with_allowed_port(target.domain, named)
            detail = _with_left_out(f"{len(rules.sitemaps)} sitemaps", named, allowed)
            return ReadSitemap(sitemaps=allowed, detail=detail)
        if not rules.allows(target.url):
            return ReadSitemap(detail=rules.denial(target.url))
        try:
            response = getter.get(target.url, max_bytes=MAX_BYTES)
            result = without_content(response, scope=policy.scope, limits=self._limits)
            if result is None:
                return self._content_of_sitemap(target, response, policy.scope)
        except (ServerError, FetchError) as error:
            if isinstance(error, ServerError):
                self._rate_limiter.pause(host_of(target.url), error.retry_after or 0)
            if is_named:
                raise
            return ReadSitemap(detail=f"none: {error}", partial=True, unproven=True)
        if isinstance(result, Redirected):
            return ReadSitemap(sitemaps=(result.target,), detail=f"to {result.target}")
        partial = response.status not in _NO_SITEMAP
        return ReadSitemap(detail=f"none: {response.status}", partial=partial, unproven=not is_named)

    def _content_of_sitemap(self, target: Target, response: Response, scope: Scope) -> ReadSitemap:
        """Return the URLs of a sitemap, without sitemaps of other hosts that the scope does not contain."""
        host = host_of(target.url)
        with cpu_limit():
            read = sitemap_of(response, scope=scope)
            near = [url for url in read.sitemaps if host_of(url) == host or scope.contains(url, any_path=True)]
            allowed = self._with_allowed_port(target.domain, near)
        return read._replace(sitemaps=allowed, detail=_with_left_out(read.detail, read.sitemaps, allowed))

    def _classify(self, response: Response, scope: Scope) -> FetchResult:
        with cpu_limit():
            return classify(response, scope=scope, extractor=self._extractor, limits=self._limits)

    def _with_allowed_port(self, domain: str, urls: Sequence[str]) -> tuple[str, ...]:
        return tuple(url for url in urls if allows_port(domain, url, self._limits.ports))

    def urls_of_probe(self, target: Target) -> tuple[str, ...]:
        """Return the URL that a crawl requests to know the error page of its start page's site; none if that is off."""
        url = probe_url(target.url, target.crawl_id) if self._probes else None
        return (url,) if url else ()

    def probe(self, target: Target) -> Probed:
        """Request a page that cannot exist, without retries. The caller has waited for the host.

        Raises RobotsUnavailable and Postpone, as `get` does.
        """
        if not self._probes:
            return Probed(detail="SOFT_404_PROBE is off")
        policy = self._policies(target.domain)
        getter = self._getters.of(policy.request)
        rules = self._rules(target, policy)
        if not rules.allows(target.url):
            return Probed(detail=rules.denial(target.url))
        try:
            response = getter.get(target.url)
            result = self._classify(response, policy.scope)
        except (ServerError, FetchError) as error:
            if isinstance(error, ServerError):
                self._rate_limiter.pause(host_of(target.url), error.retry_after or 0)
            return Probed(detail=str(error))
        if not isinstance(result, Indexed):
            return Probed(status=response.status)
        page = result.page
        return Probed(error_hash(page.title, page.body, page.path), response.status, "the site has soft 404s")

    def store(self, target: Target, result: FetchResult) -> str:
        """Store a result; return the page's id if the page belongs in its crawl's pack, else an empty string.

        A page that is gone becomes a tombstone if it was stored before.
        """
        own_id = page_id(target.canonical_key)
        object_key = content_key(target.domain, own_id)
        match result:
            case Indexed(page=page):
                self._store.put(object_key, to_json(page))
            case Gone(why=why):
                self._put_tombstone(object_key, target, why)
                return ""
            case Redirected():
                self._put_tombstone(object_key, target, "redirect")
                return ""
            case Unchanged():
                pass
            case Skipped(why=why, detail=detail):
                log.info("Page skipped: %s: %s (%s); what is stored of it stays", target.url, why, detail)
        return own_id

    def _put_tombstone(self, object_key: str, target: Target, why: str) -> None:
        try:
            self._store.stat(object_key)
        except ObjectNotFound:
            return
        tombstone = Tombstone(canonical_key=target.canonical_key, url=target.url, domain=target.domain, why=why)
        self._store.put(object_key, to_json(tombstone))


def redirect_outside_crawl(target: Target, result: FetchResult) -> str | None:
    """Return the URL that an `index` outside of a crawl follows a redirect to, or None."""
    if isinstance(result, Redirected) and result.in_scope and target.depth < _MAX_HOPS:
        return result.target
    return None


def redirect_of_start_page(target: Target, result: FetchResult) -> Redirected | None:
    """Return the redirect of a crawl's start page out of the scope, or None: the crawl may move there."""
    return result if isinstance(result, Redirected) and is_move(result) and target.depth == 0 else None


def is_move(result: FetchResult) -> bool:
    """Return whether a result is a redirect out of the scope."""
    return isinstance(result, Redirected) and not result.in_scope


def _with_left_out(detail: str, found: Sequence[str], allowed: Sequence[str]) -> str:
    """Return the detail of a sitemap with the number of those that it names on a forbidden host or port."""
    number = len(found) - len(allowed)
    return f"{detail}; {number} on other hosts or ports are left out" if number else detail
