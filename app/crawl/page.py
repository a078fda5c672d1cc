"""The work on a page's message: enter, fetch, store, complete. A client's `index` and `crawl` share the fetch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from app.broker.errors import Postpone, error_with_class
from app.counters import CRAWLED_URLS
from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.host_limits import host_is_busy, is_pause
from app.crawl.frontier.single_flight import SingleFlight
from app.crawl.frontier.values import (
    Admitted,
    Completed,
    Completion,
    FrontierUrl,
    Host,
    MessageKind,
    frontier_url,
    message_name,
)
from app.crawl.parse.classify import FetchResult, not_due
from app.crawl.record.entries import STORED_STATES, Former, UrlEntry, content_hash, first_links
from app.crawl.record.reasons import Reason
from app.crawl.recorder import CrawlRecorder
from app.crawl.roles import RoleWork
from app.crawl.url_runs import NO_RESULT, TOO_COMPLEX, UrlRun, UrlRuns, hash_of_text
from app.crawl.urls import SITEMAP, CrawlUrl, Excluded, are_full, host_of
from app.errors import FetchError
from app.redis_state.client import get_raw_redis
from app.storage.layout import page_id
from config.settings import Settings

#: Pages that a message may have at most, and seconds after which no further one of them is begun.
MOST_PAGES, BATCH_SECONDS = 16, 0.2
#: Seconds that a message waits whose crawl Redis lost while it was restored.
_LOST_AGAIN: Final = 1.0
#: Redirects that an `index` outside of a crawl follows; within a crawl each hop is a page of its own.
_MAX_HOPS = 10
#: Times that a start page may redirect its crawl to another host.
MAX_MOVES = 10


class PageWork:
    """Runs the messages of pages, and of the sitemaps and soft-404 checks among them."""

    def __init__(self, frontier: Frontier, recorder: CrawlRecorder, url_runs: UrlRuns, settings: Settings) -> None:
        self._frontier = frontier
        self._recorder = recorder
        self._url_runs = url_runs
        self.roles = RoleWork(frontier, url_runs, settings)
        self._single_flight = SingleFlight(get_raw_redis(settings.redis))

    def run(self, targets: Sequence[CrawlUrl], *, message_id: str, too_complex: bool = False) -> Completed:
        """Do the work on the URLs of a message unless nothing is left to do, and return the pages to publish next.

        Raises what `_enter` and the store raise, and, for a single page, what `UrlRuns.fetch` raises.
        """
        runs = self._enter(targets, message_id=message_id)
        has_turn = any(run.entered.fetch for run in runs)
        runs = [self._without_request(run) if run.entered.not_due else run for run in runs]
        is_missing = any(run.entered.fetch and run.entered.not_due for run in runs)
        # With a delay, the message has the only turn at its host, and a second one would be a delay later, each time.
        if is_missing and not (has_turn and runs[0].host.delay):
            again = [run.target for run in runs if run.result is NO_RESULT]
            runs = [run for run in runs if run.result is not NO_RESULT]
            runs = self._enter(again, message_id=message_id, due=True) + runs
        return self._work_and_complete(runs, too_complex=too_complex)

    def _enter(self, targets: Sequence[CrawlUrl], *, message_id: str, due: bool = False) -> list[UrlRun]:
        """Begin the run of a message of URLs of one host, in a crawl that Redis may have lost.

        What an interrupted run of the same message still holds is released. With `due`, pages are requested whatever
        the former crawl found. Nothing is left to do for a message of a removed site. Raises what `prepare` and
        `Frontier.enter` raise, such as Postpone while the host is busy. A FetchError is noted as a failure of each URL.
        """
        try:
            first = self._url_runs.prepare(targets[0])
        except FetchError as error:  # Of the robots.txt, without which no page is requested.
            for each in targets:
                self.release(each, "page", error)
            raise
        target, policy = first.target, first.policy
        runs = [replace(first, target=each) for each in targets]
        enter = partial(
            self._frontier.enter,
            *(target.crawl_id, target.domain, list(map(frontier_url, targets)), first.host),
            message_id=message_id,
            due=due,
            traps=policy.traps,
        )
        entered = enter()
        if not entered[0].crawl_found:
            if not self._recorder.restore(target):
                return runs
            entered = enter()
        if not entered[0].crawl_found:
            raise Postpone(_LOST_AGAIN, f"Redis has lost crawl {target.crawl_id} again", code="crawl-lost")
        return [replace(run, entered=each) for run, each in zip(runs, entered, strict=True)]

    def _work_and_complete(self, runs: Sequence[UrlRun], *, too_complex: bool) -> Completed:
        """Do the work on the URLs of a message one after the other, and complete them together.

        Return the pages to publish next: those admitted now, those that an earlier run admitted, and those that are
        left. Pages are left after BATCH_SECONDS, and after a response that pauses the host or may be that of a trap.
        Where the host needs a delay, all but the first are left: the host of the page that led to them may have needed
        none. The FetchError of one among several URLs is returned with it. Any other error is raised, as is that of a
        message of one URL.
        """
        began, ended, left, fetched = time.monotonic(), list[UrlRun](), list[UrlRun](), 0
        with self._released_on_error(runs):
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
            self._url_runs.store_results((run.target, run.result) for run in ended if not run.target.role)
        again = [frontier_url(run.target) for run in left]
        again += [url for run in runs for url in run.entered.unconfirmed.urls]
        most = 1 if runs[0].host.delay else MOST_PAGES
        if not ended:
            return Completed(Admitted(tuple(again), batch=most), message_name(runs[0].kind, runs[0].target.key))
        pace = int(BATCH_SECONDS * fetched / max(0.001, time.monotonic() - began))
        is_pace = fetched and runs[0].target.role != SITEMAP
        completed = self._complete(ended, batch=max(1, min(MOST_PAGES, pace)) if is_pace else 0)
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
                self.release(run.target, run.kind, error)
            raise

    def _work(self, run: UrlRun, *, too_complex: bool, alone: bool) -> UrlRun:
        """Fetch a page, or work on a sitemap or a soft-404 check, and return the run with the result.

        The run has its FetchError unless it is `alone` in its message, which then raises the error.
        """
        try:
            if run.target.role:
                return self.roles.work(run, too_complex=too_complex)
            return self._with_links(self._url_runs.work(run, too_complex=too_complex))
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
        stored, _ = self._url_runs.stored(target, former) if former and is_allowed else (None, b"")
        if former and stored:
            return self._with_links(replace(run, result=not_due(stored, former)))
        return replace(run, entered=replace(run.entered, fetch=True))

    def fetch_shared(
        self, target: CrawlUrl, kind: MessageKind, *, too_complex: bool = False, former: Former | None = None
    ) -> FetchResult | None:
        """Return the result for a page of a client's own message; None where it is already completed in its crawl.

        Within a crawl, one GET serves the messages `index` and `crawl` of a page. Raises Postpone while the host or
        another worker is busy, and what `UrlRuns.fetch` raises; InvalidMessage for a crawl of another domain.
        """

        def get() -> FetchResult:
            if target.canonical_key in self._url_runs.policies(target.domain).blocked:
                return FetchResult("gone", Reason.BLOCKED)
            run, limits = self._url_runs.prepare(target), self._url_runs.host_limits
            if too_complex:
                return self._url_runs.with_known_links(run, TOO_COMPLEX, former)
            wait = limits.reserve(run.host, requester=target.canonical_key)
            if wait > 0:
                raise host_is_busy(run.host, wait)
            try:
                return self._url_runs.fetch(run, former=former)
            finally:
                limits.release(run.host, requester=target.canonical_key)

        if not target.crawl_id:
            return get()
        return self._single_flight.fetch(target.crawl_id, kind, target.canonical_key, get, domain=target.domain)

    def release(self, target: CrawlUrl, kind: MessageKind, error: BaseException) -> None:
        """End a run that did not complete its message. Unless the error is Postpone, it leaves the admission window."""
        named, failed = (target.key, host_of(target.url)), not isinstance(error, Postpone)
        self._frontier.release(target.crawl_id, kind, *named, failed=failed, error=error_with_class(error))

    def complete_message(
        self, target: CrawlUrl, kind: MessageKind, result: FetchResult, *, recorded: bool
    ) -> Completed:
        """Complete an `index` or a `crawl` of a start page, whose crawl is `recorded`, or of a client's crawl."""
        run = replace(self._url_runs.prepare(target), kind=kind, recorded=recorded, result=result)
        return self._complete([self._with_links(run)])

    def _complete(self, runs: Sequence[UrlRun], *, batch: int = 0) -> Completed:
        """Complete a message of URLs, and return the pages that are admitted now, up to `batch` in a message."""
        first, policy = runs[0], runs[0].policy
        return self._frontier.complete(
            first.target.crawl_id,
            [_completion_of(each) for run in runs for each in (run, *run.beside)],
            host=first.host,
            max_pages=policy.settings.max_pages,
            traps=policy.traps,
            batch=batch,
        )

    def _with_links(self, run: UrlRun) -> UrlRun:
        """Return a run with the hash of its page's text, and what the page leads to, which is nothing of an `index`.

        A page leads to its links, a start page also to the soft-404 check and its robots.txt.
        """
        if not run.text and run.kind != "crawl":
            run = replace(run, text=hash_of_text(run.result))
        if not run.recorded or run.kind == "index":
            return run
        target, result, below, own_id = run.target, run.result, run.target.depth + 1, page_id(run.target.key)
        redirects = target.redirects + 1 if run.kind == "page" and result.state == "redirected" else 0
        links, excluded, found = result.links, result.excluded, list[FrontierUrl]()
        if are_full(links, limit=self._url_runs.limits.links):  # The pages of further ones have not vanished.
            self._frontier.note_cut(target.crawl_id)
        if target.depth == 0 and not is_move(result):
            run = replace(run, beside=(self.roles.of_robots_txt(run),))
            found += self.roles.soft_404_check_of(target)
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
