"""The work on a page: enter, fetch, read, store, complete. A client's `index` and `crawl` share the fetch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from app.crawl.frontier.host_limits import host_is_busy, is_pause
from app.crawl.frontier.single_flight import SingleFlight
from app.crawl.frontier.values import Admitted, Completed, FrontierUrl, MessageKind, frontier_url, message_name
from app.crawl.parse.classify import FetchResult, not_due, not_modified
from app.crawl.record.entries import Former, content_hash
from app.crawl.record.reasons import Reason
from app.crawl.sitemap import SitemapWork
from app.crawl.soft_404_check import Soft404CheckWork
from app.crawl.traps import error_hash, text_hash
from app.crawl.url_runs import NO_RESULT, TOO_COMPLEX, UrlRun, UrlRuns
from app.crawl.urls import SITEMAP, CrawlUrl, Excluded, are_full, links_in_scope
from app.errors import FetchError, ObjectNotFound
from app.redis_state.client import get_raw_redis
from app.storage.damage import decoded_if_intact
from app.storage.layout import CONTENT_VERSION, Page, Tombstone, content_key, content_of, page_id, to_json
from app.storage.reading import get_if_present
from app.storage.store import ObjectStore
from config.settings import Settings

log = logging.getLogger(__name__)

#: Pages that a message may have at most, and seconds after which no further one of them is begun.
MOST_PAGES, BATCH_SECONDS = 16, 0.2
#: The status of a page that is as the validators of the request say.
NOT_MODIFIED = 304
#: Redirects that an `index` outside of a crawl follows; within a crawl each hop is a page of its own.
_MAX_HOPS = 10
#: What the interval of a page is multiplied by, as in Apache Nutch's AdaptiveFetchSchedule.
UNCHANGED_FACTOR, CHANGED_FACTOR = 1.4, 0.8
#: Times that a start page may redirect its crawl to another host.
MAX_MOVES = 10


class PageWork:
    """Runs the messages of pages, and of the sitemaps and soft-404 checks among them."""

    def __init__(self, url_runs: UrlRuns, store: ObjectStore, settings: Settings) -> None:
        self._url_runs = url_runs
        self._store = store
        self.sitemaps = SitemapWork(url_runs)
        self.soft_404_check = Soft404CheckWork(url_runs, settings)
        self._single_flight = SingleFlight(get_raw_redis(settings.redis))

    def run(self, targets: Sequence[CrawlUrl], *, message_id: str, too_complex: bool = False) -> Completed:
        """Do the work on the URLs of a message unless nothing is left to do, and return the pages to publish next.

        Raises what `UrlRuns.enter` and the store raise, and, for a single page, what `fetch` raises.
        """
        runs = self._url_runs.enter(targets, message_id=message_id)
        has_turn = any(run.entered.fetch for run in runs)
        runs = [self._without_request(run) if run.entered.not_due else run for run in runs]
        is_missing = any(run.entered.fetch and run.entered.not_due for run in runs)
        # With a delay, the message has the only turn at its host, and a second one would be a delay later, each time.
        if is_missing and not (has_turn and runs[0].host.delay):
            again = [run.target for run in runs if run.result is NO_RESULT]
            runs = [run for run in runs if run.result is not NO_RESULT]
            runs = self._url_runs.enter(again, message_id=message_id, due=True) + runs
        return self._work_and_complete(runs, too_complex=too_complex)

    def _work_and_complete(self, runs: Sequence[UrlRun], *, too_complex: bool) -> Completed:
        """Do the work on the URLs of a message one after the other, and complete them together.

        Return the pages to publish next: those admitted now, those that an earlier run admitted, and those that are
        left. Pages are left after BATCH_SECONDS, and after a response that pauses the host or may be that of a trap.
        Where the host needs a delay, all but the first are left: the host of the page that led to them may have needed
        none. The FetchError of one among several URLs is returned with it. Any other error is raised, as is that of a
        message of one URL.
        """
        began, ended, left, fetched = time.monotonic(), list[UrlRun](), list[UrlRun](), 0
        with self._released_on_error(runs), self._store.deferred_sync():
            for run in runs:
                if run.entered.spent:
                    ended.append(replace(run, result=FetchResult("skipped", run.entered.spent)))
                elif not run.entered.fetch:
                    ended += [run] if run.result is not NO_RESULT else []
                elif fetched and (run.host.delay or _is_last(ended) or time.monotonic() > began + BATCH_SECONDS):
                    left.append(run)
                else:
                    fetched += 1
                    ended.append(self._work(run, too_complex=too_complex, alone=len(runs) == 1))
        again = [frontier_url(run.target) for run in left]
        again += [url for run in runs for url in run.entered.unconfirmed.urls]
        most = 1 if runs[0].host.delay else MOST_PAGES
        if not ended:
            return Completed(Admitted(tuple(again), batch=most), message_name(runs[0].kind, runs[0].target.key))
        pace = int(BATCH_SECONDS * fetched / max(0.001, time.monotonic() - began))
        is_pace = fetched and runs[0].target.role != SITEMAP
        completed = self._url_runs.complete(ended, batch=max(1, min(MOST_PAGES, pace)) if is_pace else 0)
        admitted = completed.admitted
        if again:  # One message in place of this one.
            admitted = replace(admitted, urls=(*again, *admitted.urls), batch=most)
        failed = tuple((run.target, run.error) for run in ended if run.error)
        return replace(completed, admitted=admitted, failed=failed)

    @contextmanager
    def _released_on_error(self, runs: Sequence[UrlRun]) -> Iterator[None]:
        """End runs in whose block an error is raised."""
        try:
            yield
        except BaseException as error:
            for run in runs:
                self._url_runs.release(run.target, run.kind, error)
            raise

    def _work(self, run: UrlRun, *, too_complex: bool, alone: bool) -> UrlRun:
        """Fetch and store a page, or work on a sitemap or a soft-404 check, and return the run with the result.

        The run has its FetchError unless it is `alone` in its message, which then raises the error.
        """
        target, former, policy = run.target, run.entered.former, run.policy
        try:
            if target.role:
                work = self.sitemaps.work if target.role == SITEMAP else self.soft_404_check.work
                return work(run, too_complex=too_complex)
            if too_complex:
                received = self._with_known_links(run, TOO_COMPLEX, former)
            else:
                received = self.fetch(run, former=former)
            result = received
            if received.state == "redirected" and target.redirects >= policy.traps.redirects:
                detail = f"to {received.detail}"
                result = FetchResult("skipped", Reason.TOO_MANY_REDIRECTS, detail, status=received.status)
            elif target.depth and run.entered.soft_404 and _hash_of(received, error_hash) == run.entered.soft_404:
                result = FetchResult("gone", Reason.SOFT_404, status=received.status)
            result = with_interval(result, former, now=time.time(), longest=policy.max_page_interval)
            self.store(target, result)
            # The hash is that of the received text, also where the crawl sees no page.
            return self._with_links(replace(run, result=result, text=_hash_of(received)))
        except FetchError as error:
            if alone:
                raise
            return replace(run, error=error)

    def _without_request(self, run: UrlRun) -> UrlRun:
        """Return the run of a page that is not due with its result, or to be fetched if the page must be requested.

        It must if it is not stored as the former crawl found it, or if robots.txt or the site forbid it now.
        """
        target, former = run.target, run.entered.former
        is_allowed = target.canonical_key not in run.policy.blocked and run.rules.allows(target.url)
        stored, _ = self._stored(target, former) if former and is_allowed else (None, b"")
        if former and stored:
            return self._with_links(replace(run, result=not_due(stored, former)))
        return replace(run, entered=replace(run.entered, fetch=True))

    def fetch_shared(
        self, target: CrawlUrl, kind: MessageKind, *, too_complex: bool = False, former: Former | None = None
    ) -> FetchResult | None:
        """Return the result for a page of a client's own message; None where it is already completed in its crawl.

        Within a crawl, one GET serves the messages `index` and `crawl` of a page. Raises Postpone while the host or
        another worker is busy, and what `fetch` raises; InvalidMessage for a crawl of another domain.
        """

        def get() -> FetchResult:
            if target.canonical_key in self._url_runs.policies(target.domain).blocked:
                return FetchResult("gone", Reason.BLOCKED)
            run, limits = self._url_runs.prepare(target), self._url_runs.host_limits
            if too_complex:
                return self._with_known_links(run, TOO_COMPLEX, former)
            wait = limits.reserve(run.host, requester=target.canonical_key)
            if wait > 0:
                raise host_is_busy(run.host, wait)
            try:
                return self.fetch(run, former=former)
            finally:
                limits.release(run.host, requester=target.canonical_key)

        if not target.crawl_id:
            return get()
        return self._single_flight.fetch(target.crawl_id, kind, target.canonical_key, get, domain=target.domain)

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
        stored, data = self._stored(target, former) if former else (None, b"")
        result = self._url_runs.request_and_classify(run, headers=former.headers if former and stored else None)
        if former and stored and result.status == NOT_MODIFIED:
            return not_modified(result, stored, former)
        if stored and result.page and to_json(result.page) == data:
            return replace(result, state="unchanged", reason=Reason.SAME_CONTENT)
        # Its links are unknown after a 304, too, that answers no validators. Those of a page without text are known.
        is_unread = not result.page and result.state in ("skipped", "unchanged") and result.reason != Reason.EMPTY
        return self._with_known_links(run, result, former, stored) if is_unread else result

    def _with_known_links(
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
        links, _ = links_in_scope(run.target.url, anchors, scope=run.policy.scope, limit=self._url_runs.limits.links)
        return replace(result, links=links)

    def _stored(self, target: CrawlUrl, former: Former) -> tuple[Page | None, bytes]:
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

    def store(self, target: CrawlUrl, result: FetchResult) -> str:
        """Store a result; return the page's id if the page belongs in its crawl's pack, else an empty string.

        A page that is gone becomes a tombstone if it was stored before.
        """
        own_id = page_id(target.canonical_key)
        object_key = content_key(target.domain, own_id)
        if result.state == "indexed" and result.page:
            self._store.put(object_key, to_json(result.page))
        elif result.state in ("gone", "redirected"):
            try:
                self._store.stat(object_key)
            except ObjectNotFound:
                return ""
            why = result.reason if result.state == "gone" else "redirect"
            tombstone = Tombstone(canonical_key=target.canonical_key, url=target.url, domain=target.domain, why=why)
            self._store.put(object_key, to_json(tombstone))
            return ""
        elif result.state == "skipped":
            log.debug("Page skipped: %s: %s (%s); its stored page stays", target.url, result.reason, result.detail)
        return own_id

    def complete_message(
        self, target: CrawlUrl, kind: MessageKind, result: FetchResult, *, recorded: bool
    ) -> Completed:
        """Complete an `index` or a `crawl` of a start page, whose crawl is `recorded`, or of a client's crawl."""
        run = replace(self._url_runs.prepare(target), kind=kind, recorded=recorded, result=result)
        return self.complete(run)

    def complete(self, run: UrlRun) -> Completed:
        """Complete a page's message with what the page leads to."""
        return self._url_runs.complete([self._with_links(run)])

    def _with_links(self, run: UrlRun) -> UrlRun:
        """Return a run with the hash of its page's text, and what the page leads to, which is nothing of an `index`.

        A page leads to its links, a start page also to the soft-404 check and its robots.txt.
        """
        if not run.text and run.kind != "crawl":
            run = replace(run, text=_hash_of(run.result))
        if not run.recorded or run.kind == "index":
            return run
        target, result, below, own_id = run.target, run.result, run.target.depth + 1, page_id(run.target.key)
        redirects = target.redirects + 1 if run.kind == "page" and result.state == "redirected" else 0
        links, excluded, found = result.links, result.excluded, list[FrontierUrl]()
        if are_full(links, limit=self._url_runs.limits.links):  # The pages of further ones have not vanished.
            self._url_runs.frontier.note_cut(target.crawl_id)
        if target.depth == 0 and not is_move(result):
            run = replace(run, beside=(self.sitemaps.of_robots_txt(run),))
            found += self.soft_404_check.found_at(target)
        if below > run.policy.settings.max_depth:
            excluded += tuple(Excluded(link.url, link.canonical_key, Reason.MAX_DEPTH) for link in links)
            links = ()
        found += [FrontierUrl(link.url, link.canonical_key, below, own_id, redirects) for link in links]
        left_out = [(each.reason, FrontierUrl(each.url, each.canonical_key, below, own_id)) for each in excluded]
        return replace(run, found=found, excluded=left_out)


def _is_last(runs: Sequence[UrlRun]) -> bool:
    """Return whether the last run has paused its host, or has found the text of an earlier one."""
    *earlier, last = runs
    is_again = bool(last.text) and any(last.text == run.text for run in earlier)
    return last.is_last or is_pause(last.error) or is_again


def _hash_of(result: FetchResult, text_hash: Callable[[str, str, str], str] = text_hash) -> str:
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


def redirect_outside_crawl(target: CrawlUrl, result: FetchResult) -> str | None:
    """Return the URL that an `index` outside of a crawl follows a redirect to, or None."""
    if result.state == "redirected" and result.links and target.depth < _MAX_HOPS:
        return result.detail
    return None


def redirect_of_start_page(target: CrawlUrl, result: FetchResult) -> FetchResult | None:
    """Return the redirect of a crawl's start page out of the scope, or None: the crawl may move there."""
    return result if is_move(result) and target.depth == 0 else None


def is_move(result: FetchResult) -> bool:
    """Return whether a result is a redirect out of the scope."""
    return result.state == "redirected" and not result.links
