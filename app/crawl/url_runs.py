"""One run of a URL's message: how its site wants to be requested, what the response means, and what is stored."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import ada_url
from redis import Redis

from app.broker.errors import ApplicationError
from app.counters import CRAWL_BYTES, CRAWL_REQUESTS, CRAWL_SECONDS, status_label
from app.crawl.frontier.host_limits import HostRateLimiter
from app.crawl.frontier.robots_cache import RobotsCache
from app.crawl.frontier.values import Entered, FrontierUrl, Host, MessageKind
from app.crawl.parse.classify import FetchResult, Limits, classify, not_modified, other_url_of_page
from app.crawl.parse.cpu_limit import MAX_CPU_SECONDS
from app.crawl.parse.extract.lexbor import LexborExtractor
from app.crawl.policy import CrawlPolicy, PolicyOfDomain, RequestOptions, product_token
from app.crawl.record.entries import Former, content_hash
from app.crawl.record.reasons import Reason
from app.crawl.robots import RobotsRules
from app.crawl.traps import error_hash, text_hash
from app.crawl.urls import CrawlUrl, host_of, links_in_scope
from app.errors import FetchError, ObjectNotFound, ServerError
from app.http.fetcher import Fetcher
from app.http.response import Response
from app.storage.damage import decoded_if_intact
from app.storage.layout import CONTENT_VERSION, Page, Tombstone, content_key, content_of, page_id, to_json
from app.storage.reading import get_if_present
from app.storage.store import ObjectStore
from config.settings import Settings

log = logging.getLogger(__name__)

#: The status of a page that is as the validators of the request say.
_NOT_MODIFIED: Final = 304

#: What the interval of a page is multiplied by, as in Apache Nutch's AdaptiveFetchSchedule.
UNCHANGED_FACTOR, CHANGED_FACTOR = 1.4, 0.8

#: Redirects from one URL of a page to another that one run follows.
_MAX_OTHER_URLS: Final = 5

#: The result of a URL whose response took its last run more CPU time than a page may. It is not requested again.
TOO_COMPLEX: Final = FetchResult("skipped", Reason.TOO_COMPLEX, f"it took over {MAX_CPU_SECONDS:g} s of CPU")

#: What a run has before it is entered in the frontier.
_NOT_ENTERED: Final = Entered(fetch=False)
NO_RESULT: Final = FetchResult("skipped")

#: Clients that a process keeps. Each has connections of its own.
_KEPT_CLIENTS: Final = 64


class SiteClient:
    """Gets URLs with the options of one site."""

    def __init__(self, settings: Settings, options: RequestOptions) -> None:
        self._options = options
        self._fetcher = Fetcher.of(
            settings,
            user_agent=options.user_agent,
            proxy=options.proxy,
            proxy_login=options.proxy_login,
            ca_file=options.ca_file,
        )

    def get(self, url: str, *, headers: Mapping[str, str] | None = None, max_bytes: int = 0) -> Response:
        """Return what `Fetcher.get` returns; raises what it raises. Secrets go to the origins of the site only."""
        own = headers_for(url, self._options)
        return self._fetcher.get(url, headers={**(headers or {}), **own}, max_bytes=max_bytes)

    def close(self) -> None:
        """Close every connection."""
        self._fetcher.close()


def headers_for(url: str, options: RequestOptions) -> dict[str, str]:
    """Return the headers of a request to an absolute URL: secrets go to the origins of the site only."""
    if not options.headers or ada_url.URL(url).origin not in options.origins:
        return {}
    return dict(options.headers)


class SiteClients:
    """The clients by their options; domains with the same options share one. Safe for use by several threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kept: dict[RequestOptions, SiteClient] = {}
        self._lock = threading.Lock()

    def of(self, options: RequestOptions) -> SiteClient:
        """Return the client with these options, made on the first call; raises FetchError for an invalid CA file."""
        with self._lock:
            client = self._kept.get(options)
            if client is None:
                if len(self._kept) >= _KEPT_CLIENTS:
                    self._kept.pop(next(iter(self._kept))).close()
                client = self._kept[options] = SiteClient(self._settings, options)
            return client


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlRun:
    """One run of a URL's message, with what is known of the URL: each step returns it with more.

    A client's crawl has no record: `recorded` is false.
    `text` is the `text_hash` of its page. `found` are the URLs that it leads to, `excluded` those that are not
    followed, with their reasons. `error` is why it failed beside other URLs.
    `is_last`: no further URL of its message is to be requested now. `beside` are runs that are completed with it.
    """

    target: CrawlUrl
    policy: CrawlPolicy
    client: SiteClient
    rules: RobotsRules
    host: Host
    kind: MessageKind = "page"
    recorded: bool = True
    entered: Entered = _NOT_ENTERED
    result: FetchResult = NO_RESULT
    text: str = ""
    found: Sequence[FrontierUrl] = ()
    excluded: Sequence[tuple[str, FrontierUrl]] = ()
    error: FetchError | None = None
    is_last: bool = False
    beside: Sequence[UrlRun] = ()


class UrlRuns:
    """Prepares runs, requests their URLs and stores their pages; one per process, which owns its HTTP connections."""

    def __init__(self, store: ObjectStore, *, settings: Settings, redis: Redis, policies: PolicyOfDomain) -> None:
        self._store = store
        self.policies = policies
        self.host_limits = HostRateLimiter(redis)
        self.limits = Limits(ports=settings.allow_ports, robot=product_token(settings.user_agent))
        self._extractor = LexborExtractor(self.limits.robot)
        self._clients = SiteClients(settings)
        self._robots = RobotsCache(redis, self.host_limits, user_agent=settings.user_agent, ports=settings.allow_ports)

    def prepare(self, target: CrawlUrl) -> UrlRun:
        """Return a run that knows how its URL may be requested: by which client, under which rules and limits.

        Raises RobotsUnavailable, and Postpone while another worker requests the robots.txt.
        """
        policy = self.policies(target.domain)
        client = self._clients.of(policy.request)
        rules = self._robots.rules(target.url, client, policy.settings, domain=target.domain)
        name, delay = host_of(target.url), max(policy.settings.host_delay, rules.crawl_delay or 0)
        host = Host(name, delay, 1 if delay else policy.settings.host_concurrency, own=name == target.domain)
        return UrlRun(target=target, policy=policy, client=client, rules=rules, host=host)

    def request_and_classify(self, run: UrlRun, *, headers: Mapping[str, str] | None = None) -> FetchResult:
        """Request a page or a soft-404 check, and return what its response means; a ServerError may pause the host.

        A redirect to another URL of the same page is followed at once: as a page of its own, it would be done already.
        Then the next page waits for the delays of all these requests.
        """
        response = request(run, headers=headers)
        for number in range(1, _MAX_OTHER_URLS + 1):
            url = other_url_of_page(response)
            if url is None or not run.rules.allows(url) or not run.policy.scope.contains(url):
                break
            self.host_limits.pause(run.host.name, (number + 1) * run.host.delay)
            response = request(replace(run, target=replace(run.target, url=url)), headers=headers)
        try:
            # A page has the URL by which it was found: other visitors have another session.
            response = replace(response, url=run.target.url)
            return classify(response, scope=run.policy.scope, extractor=self._extractor, limits=self.limits)
        except ServerError as error:
            self.host_limits.pause_after(run.host, error)
            raise

    def work(self, run: UrlRun, *, too_complex: bool) -> UrlRun:
        """Fetch a page of a crawl, and return the run with the result and the hash of the received text."""
        target, former, policy = run.target, run.entered.former, run.policy
        received = self.with_known_links(run, TOO_COMPLEX, former) if too_complex else self.fetch(run, former=former)
        result = received
        if received.state == "redirected" and target.redirects >= policy.traps.redirects:
            detail = f"to {received.detail}"
            result = FetchResult("skipped", Reason.TOO_MANY_REDIRECTS, detail, status=received.status)
        elif target.depth and run.entered.soft_404 and hash_of_text(received, error_hash) == run.entered.soft_404:
            result = FetchResult("gone", Reason.SOFT_404, status=received.status)
        result = with_interval(result, former, now=time.time(), longest=policy.max_page_interval)
        if result.state == "skipped":
            log.debug("Page skipped: %s: %s (%s); its stored page stays", target.url, result.reason, result.detail)
        # The text counts as received, also where the crawl sees no page.
        return replace(run, result=result, text=hash_of_text(received))

    def fetch(self, run: UrlRun, *, former: Former | None = None) -> FetchResult:
        """Request a page now and classify the response. The caller has waited for the host.

        With `former`, the request is conditional if the stored page is the one that the former crawl found.
        ServerError, ConnectionFailed, ResponseTimeout and RobotsUnavailable may pass with time; ForbiddenAddress does
        not.
        """
        target = run.target
        if target.canonical_key in run.policy.blocked:
            return FetchResult("gone", Reason.BLOCKED)
        if not run.rules.allows(target.url):
            return FetchResult("gone", Reason.ROBOTS, run.rules.denial(target.url))
        stored, data = self.stored(target, former) if former else (None, b"")
        result = self.request_and_classify(run, headers=former.headers if former and stored else None)
        if former and stored and result.status == _NOT_MODIFIED:
            return not_modified(result, stored, former)
        if stored and result.page and to_json(result.page) == data:
            return replace(result, state="unchanged", reason=Reason.SAME_CONTENT)
        # Its links are unknown after a 304, too, that answers no validators. Those of a page without text are known.
        is_unread = not result.page and result.state in ("skipped", "unchanged") and result.reason != Reason.EMPTY
        return self.with_known_links(run, result, former, stored) if is_unread else result

    def with_known_links(
        self, run: UrlRun, result: FetchResult, former: Former | None, stored: Page | None = None
    ) -> FetchResult:
        """Return the result of a skipped page with the links of what is stored of it, which stays as well.

        `stored` is the stored page where it was read before. One that is not stored, such as a redirect, has the links
        by which the former crawl found pages.
        """
        stored = stored or self._page(run.target)[0]
        urls = [link.url for link in stored.links] if stored else former.links if former else ()
        if not urls:
            return result
        anchors = [(link.url, link.text) for link in result.links] + [(url, "") for url in urls]
        links, _ = links_in_scope(run.target.url, anchors, scope=run.policy.scope, limit=self.limits.links)
        return replace(result, links=links)

    def stored(self, target: CrawlUrl, former: Former) -> tuple[Page | None, bytes]:
        """Return what `_page` returns, if the page is the one that the former crawl found."""
        page, data = self._page(target)
        if page is None or page.version != CONTENT_VERSION or page.url != target.url:
            return None, b""
        return (page, data) if former.hash and content_hash(page) == former.hash else (None, b"")

    def _page(self, target: CrawlUrl) -> tuple[Page | None, bytes]:
        """Return the stored page of a URL and its bytes; None without one, and for a damaged one."""
        key = content_key(target.domain, page_id(target.canonical_key))
        stored = get_if_present(self._store, key)
        content = decoded_if_intact(self._store, key, stored, content_of)
        return (content, stored.data) if stored and isinstance(content, Page) else (None, b"")

    def store_results(self, results: Iterable[tuple[CrawlUrl, FetchResult]]) -> None:
        """Store pages, and tombstones of those that are gone and were stored before. What is stored of others stays."""
        objects = {}
        for target, result in results:
            key = content_key(target.domain, page_id(target.canonical_key))
            if result.state == "indexed" and result.page:
                objects[key] = to_json(result.page)
            elif result.state in ("gone", "redirected"):
                why = result.reason if result.state == "gone" else "redirect"
                with suppress(ObjectNotFound):
                    self._store.stat(key)
                    tombstone = Tombstone(
                        canonical_key=target.canonical_key, url=target.url, domain=target.domain, why=why
                    )
                    objects[key] = to_json(tombstone)
        self._store.put_all(objects)


def request(run: UrlRun, *, headers: Mapping[str, str] | None = None, max_bytes: int = 0) -> Response:
    """Return the response to the request of a run, which is counted; raises what `SiteClient.get` raises."""
    result, began = "exception", time.perf_counter()
    try:
        response = run.client.get(run.target.url, headers=headers, max_bytes=max_bytes)
        result = status_label(response.status)
    except ApplicationError as error:
        result = error.reason
        raise
    finally:
        CRAWL_REQUESTS.add(result)
        CRAWL_SECONDS.add(amount=time.perf_counter() - began)
    CRAWL_BYTES.add(amount=len(response.body))
    return response


def hash_of_text(result: FetchResult, text_hash: Callable[[str, str, str], str] = text_hash) -> str:
    """Return the hash of the text of a result's page, by `text_hash` or another function; empty without a page."""
    page = result.page
    return text_hash(page.title, page.body, page.path) if page else ""


def with_interval(result: FetchResult, former: Former | None, *, now: float, longest: float | None) -> FetchResult:
    """Return a result with the seconds until its page is due again, at most `longest`; without it, as it is.

    They are more each time that the page is unchanged, and less each time that it changed. A page without a former
    request is due in the next crawl, as is one with an interval of 0.
    """
    if longest is None or former is None or not former.at or not result.page:
        return result
    factor = UNCHANGED_FACTOR if result.state == "unchanged" else CHANGED_FACTOR
    interval = min(longest, factor * (former.interval or max(0.0, now - former.at)))
    return replace(result, interval=interval, due=now + interval)
