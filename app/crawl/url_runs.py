"""The runs of the URLs of pages, sitemaps and soft-404 checks: how one begins, requests its URL and is completed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from redis import Redis

from app.broker.errors import ApplicationError, Postpone, error_with_class
from app.counters import CRAWL_BYTES, CRAWL_REQUESTS, CRAWL_SECONDS, CRAWLED_URLS, status_label
from app.crawl.fetch.clients import SiteClient, SiteClients
from app.crawl.fetch.robots import RobotsRules
from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.host_limits import HostRateLimiter
from app.crawl.frontier.robots_cache import RobotsCache
from app.crawl.frontier.values import Completed, Completion, Entered, FrontierUrl, Host, MessageKind, frontier_url
from app.crawl.parse.classify import FetchResult, Limits, classify, other_url_of_page
from app.crawl.parse.cpu_limit import MAX_CPU_SECONDS
from app.crawl.parse.extract.lexbor import LexborExtractor
from app.crawl.policy import CrawlPolicy, PolicyOfDomain, product_token
from app.crawl.record.entries import STORED_STATES, UrlEntry, content_hash, first_links
from app.crawl.record.reasons import Reason
from app.crawl.recorder import CrawlRecorder
from app.crawl.urls import SITEMAP, CrawlUrl, host_of
from app.errors import FetchError, ServerError
from app.http.response import Response
from app.storage.layout import page_id
from config.settings import Settings

#: Seconds that a message waits whose crawl Redis lost while it was restored.
_LOST_AGAIN = 1.0

#: Redirects from one URL of a page to another that one run follows.
_MAX_OTHER_URLS: Final = 5

#: The result of a URL whose response took its last run more CPU time than a page may. It is not requested again.
TOO_COMPLEX: Final = FetchResult("skipped", Reason.TOO_COMPLEX, f"it took over {MAX_CPU_SECONDS:g} s of CPU")

#: What a run has before it is entered in the frontier.
_NOT_ENTERED: Final = Entered(fetch=False)
NO_RESULT: Final = FetchResult("skipped")


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
    """Begins runs, requests their URLs and completes them; one per process, which owns its HTTP connections."""

    def __init__(
        self, frontier: Frontier, recorder: CrawlRecorder, *, settings: Settings, redis: Redis, policies: PolicyOfDomain
    ) -> None:
        self.frontier = frontier
        self.recorder = recorder
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

    def enter(self, targets: Sequence[CrawlUrl], *, message_id: str, due: bool = False) -> list[UrlRun]:
        """Begin the run of a message of URLs of one host, in a crawl that Redis may have lost.

        What an interrupted run of the same message still holds is released. With `due`, pages are requested whatever
        the former crawl found. Nothing is left to do for a message of a removed site. Raises what `prepare` and
        `Frontier.enter` raise, such as Postpone while the host is busy. A FetchError is noted as a failure of each URL.
        """
        try:
            first = self.prepare(targets[0])
        except FetchError as error:  # Of the robots.txt, without which no page is requested.
            for each in targets:
                self.release(each, "page", error)
            raise
        target, policy = first.target, first.policy
        runs = [replace(first, target=each) for each in targets]
        enter = partial(
            self.frontier.enter,
            *(target.crawl_id, target.domain, list(map(frontier_url, targets)), first.host),
            message_id=message_id,
            due=due,
            traps=policy.traps,
        )
        entered = enter()
        if not entered[0].crawl_found:
            if not self.recorder.restore(target):
                return runs
            entered = enter()
        if not entered[0].crawl_found:
            raise Postpone(_LOST_AGAIN, f"Redis has lost crawl {target.crawl_id} again", code="crawl-lost")
        return [replace(run, entered=each) for run, each in zip(runs, entered, strict=True)]

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

    def release(self, target: CrawlUrl, kind: MessageKind, error: BaseException) -> None:
        """End a run that did not complete its message. Unless the error is Postpone, it leaves the admission window."""
        named, failed = (target.key, host_of(target.url)), not isinstance(error, Postpone)
        self.frontier.release(target.crawl_id, kind, *named, failed=failed, error=error_with_class(error))

    def complete(self, runs: Sequence[UrlRun], *, batch: int = 0) -> Completed:
        """Complete a message of URLs, and return the pages that are admitted now, up to `batch` in a message."""
        first, policy = runs[0], runs[0].policy
        return self.frontier.complete(
            first.target.crawl_id,
            [_completion_of(each) for run in runs for each in (run, *run.beside)],
            host=first.host,
            max_pages=policy.settings.max_pages,
            traps=policy.traps,
            batch=batch,
        )


def _completion_of(run: UrlRun) -> Completion:
    """Return how a URL's run ends, which is counted. Of a `crawl`, the record gets no line."""
    if run.error:
        return Completion(kind=run.kind, key=run.target.key, state="f", error=error_with_class(run.error))
    entry, line = entry_of(run.target, run.result), ""
    if run.kind != "crawl":
        CRAWLED_URLS.add(entry.state, entry.reason)
    if run.kind == "page":  # The frontier adds the links by which the crawl finds pages.
        entry.links = first_links(entry.links)
    if run.recorded and run.kind != "crawl":
        line = entry.to_line().decode()
    return Completion(
        kind=run.kind,
        key=run.target.key,
        line=line,
        # What is stored of a skipped page stays, but most of these were never stored.
        indexed=run.kind != "crawl" and entry.state in STORED_STATES,
        links=run.found,
        text=run.text,
        excluded=run.excluded,
    )


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


def entry_of(target: CrawlUrl, result: FetchResult) -> UrlEntry:
    """Return the entry of the crawl record for the result of a page, or of a sitemap."""
    page, reason, detail = result.page, result.reason, result.detail
    if page and page.canonical:
        reason, detail = Reason.CANONICAL, page.canonical
    return UrlEntry(
        url=target.url,
        page_id=page_id(target.key),
        state=result.state,
        at=time.time(),
        reason=reason,
        detail=detail,
        status=result.status,
        depth=target.depth,
        referrer=target.referrer,
        etag=result.etag,
        last_modified=result.last_modified,
        hash=content_hash(page) if page else result.hash,
        # A stored page has its links.
        links=() if page else tuple(link.url for link in result.links),
        interval=result.interval,
        due=result.due,
    )


def complete_lost(frontier: Frontier, domain: str, crawl_id: str, messages: Iterable[FrontierUrl]) -> None:
    """Complete messages that vanished from the broker again and again. What is stored of their pages stays."""
    for each in messages:
        found = (each.depth, each.referrer, each.redirects, each.role)
        complete_dead(frontier, CrawlUrl(each.url, domain, each.canonical_key, crawl_id, *found), each.kind, lost=True)


def complete_dead(frontier: Frontier, target: CrawlUrl, kind: MessageKind, *, lost: bool = False) -> None:
    """Complete a message that is dead-lettered, or lost. What is stored of its page stays in the crawl's pack.

    The crawl is noted as cut if the pages that the message leads to are unknown then.
    """
    key = target.key
    crawl = frontier.crawl(target.crawl_id)
    if crawl and crawl.domain != target.domain:  # The reason why it is dead; the crawl has nothing to do with it.
        return
    if crawl is None and kind == "page":  # Redis has lost the crawl: without an entry, the sweep must find the page.
        return
    failures, former = frontier.failures(target.crawl_id, kind, key), frontier.former(target.crawl_id, key)
    entry = UrlEntry(
        url=target.url,
        page_id=page_id(key),
        state="lost" if lost else "failed",
        at=time.time(),
        reason=Reason.LOST if lost else Reason.DEAD_LETTERED,
        detail=str(failures) if failures else "",
        depth=target.depth,
        referrer=target.referrer,
        links=former.links if former else (),
    )
    if kind != "crawl":
        CRAWLED_URLS.add(entry.state, entry.reason)
    if kind == "crawl" or target.role == SITEMAP:
        frontier.note_cut(target.crawl_id)
    recorded = crawl is not None and crawl.recorded
    line = entry.to_line().decode() if recorded and kind != "crawl" else ""
    # Without a look at robots.txt: this runs in the event loop of the worker's main process.
    host = Host(host_of(target.url), delay=0, concurrency=1)
    frontier.complete(target.crawl_id, [Completion(kind=kind, key=key, state="x", line=line)], host=host)
