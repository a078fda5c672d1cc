"""The messages about a page, and the end of its crawl: index_and_crawl, index, crawl, page, end_crawl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from celery.utils.log import get_task_logger

from app.broker.errors import InvalidMessage
from app.broker.headers import DELIVERIES, LAST_ERROR
from app.broker.outgoing import Outgoing
from app.broker.policies.base import Dead
from app.broker.worker.parts import fail_part
from app.celery import app
from app.counters import CRAWLED_URLS, TASK_RUNS
from app.crawl.frontier.values import (
    Admitted,
    Completed,
    Crawl,
    FrontierUrl,
    MessageKind,
    frontier_url,
)
from app.crawl.page import MAX_MOVES, complete_dead, entry_of, redirect_of_start_page, redirect_outside_crawl
from app.crawl.parse.classify import FetchResult
from app.crawl.parse.cpu_limit import limit_was_exceeded
from app.crawl.record.crawls import read_crawl, update_crawl
from app.crawl.record.keys import CrawlRef
from app.crawl.record.reasons import Reason
from app.crawl.recorder import MEMBER_STATES
from app.crawl.urls import CrawlUrl, Link, canonical_key, host_of, parse_message_domain, robots_url
from app.errors import FetchError
from app.messages.crawl_messages import crawl_id_of, page_messages
from app.messages.envelopes import site_message
from app.notifications.events import crawl_ended
from app.sites.moves import may_move
from app.sites.status import status
from app.storage.layout import page_id
from app.timers.timers import full_pack_callback, incremental_pack_callback, timeout_of
from config.routes import PAGE
from tasks.base import EndCrawlTask, PageTask, context, crawl_url_of, crawl_urls_of, task
from tasks.notify import publish_events
from tasks.traces import note_trace

__all__ = ["crawl", "end_crawl", "index", "index_and_crawl", "page", "status"]

logger = get_task_logger(__name__)


@task("index+crawl", PageTask, bind=True)
def index_and_crawl(self: Any, **message: Any) -> None:
    """Start a crawl: start the domain's timer, then publish `index` and `crawl` of the start page.

    `index_and_crawl.delay("https://site.gov/")` or `delay(domain="site.gov", path="/", scheme="https")`.
    """
    start, process = crawl_url_of(message), context()
    timeout = timeout_of(message, default=process.settings.timer_timeout)
    moved_from = str(message.get("moved_from") or "")
    if moved_from and not _may_move(moved_from, start.domain):  # Another message has begun a crawl there meanwhile.
        logger.warning("%s: the crawl that moved from %s does not begin: others index it", start.url, moved_from)
        return
    # The message's id is the crawl's: a redelivered message continues the same crawl.
    crawl_id = start.crawl_id or str(self.request.id)
    process.frontier.crawl_of(start.domain, crawl_id)  # Refuses an id that is taken by a crawl of another domain.
    crawl = Crawl(
        crawl_id, start.domain, start.url, datetime.now(UTC), moves=start.depth, recorded=True, moved_from=moved_from
    )
    callback = full_pack_callback(start.domain, crawl.id)
    scheduled = message.get("scheduled") is True
    logger.info("Crawl of %s begins", start.url)
    note_trace(crawl_id)
    process.recorder.begin(crawl, timer_timeout=timeout, callback=callback.message, scheduled=scheduled)
    # Open before the timer runs, which would fire without them. If this process dies before it publishes them, this
    # message comes again.
    process.frontier.note_published(crawl.id, [FrontierUrl(start.url, start.canonical_key, 0)])
    process.timers.start(start.domain, timeout=timeout, callback=callback)
    if seeds := process.policies(start.domain).seeds:
        _publish_pairs(start.domain, crawl.id, [Link(url, canonical_key(url)) for url in seeds], depth=1)
    process.publisher.publish(_pairs([{"url": start.url, "domain": start.domain, "crawl_id": crawl.id, "depth": 0}]))


@task("index", PageTask, bind=True)
def index(self: Any, **message: Any) -> None:
    """Index one page: fetch it and store its text. Outside of a crawl this resets its domain's timer.

    With `pack`, the page is packed at once instead.
    """
    page, process = crawl_url_of(message), context()
    if not page.crawl_id:  # In a crawl, its open messages hold the timer back.
        reset_timer_of(page.domain)
    result = _fetch(page, "index", self.request.headers or {})
    if result is None:
        publish_admitted(page, process.frontier.unconfirmed(page.crawl_id, "index", page.canonical_key))
        return
    process.url_runs.store_results([(page, result)])
    # Again after the fetch: a timer that became due during it packed without this page.
    reset_timer_of(page.domain)
    if page.crawl_id:
        recorded = process.recorder.is_recorded(page)
        completed = process.pages.complete_message(page, "index", result, recorded=recorded)
        publish_admitted(page, completed)
        return
    entry = entry_of(page, result)
    CRAWLED_URLS.add(entry.state, entry.reason)
    if entry.state in MEMBER_STATES:
        process.recorder.add_to_latest(page.domain, entry)
    at_once = {"pack": True} if message.get("pack") is True else {}
    if url := redirect_outside_crawl(page, result):
        onward = site_message("index", process.budgets, url=url, domain=page.domain, depth=page.depth + 1, **at_once)
        process.publisher.publish([onward])
    if at_once:
        named = [page_id(page.canonical_key)]
        process.publisher.publish(
            [site_message("pack_incremental", process.budgets, domain=page.domain, page_ids=named)]
        )


@task("crawl", PageTask, bind=True)
def crawl(self: Any, **message: Any) -> None:
    """Follow one page's links to the pages in scope that its crawl has not seen.

    A crawl that began with `index+crawl` gets them in its backlog. In a client's crawl, `index` and `crawl` of each
    are published.
    """
    page, process = crawl_url_of(message), context()
    page = replace(page, crawl_id=page.crawl_id or str(self.request.id))
    result = _fetch(page, "crawl", self.request.headers or {})
    if result is None:
        publish_admitted(page, process.frontier.unconfirmed(page.crawl_id, "crawl", page.canonical_key))
        return
    recorded = process.recorder.is_recorded(page)
    if target := redirect_of_start_page(page, result):
        _move(page, target)
    elif not recorded:
        _publish_pairs(page.domain, page.crawl_id, result.links, depth=page.depth + 1)
    publish_admitted(page, process.pages.complete_message(page, "crawl", result, recorded=recorded))


@task("page", PageTask, bind=True)
def page(self: Any, **message: Any) -> None:
    """Index pages of a crawl on one host and follow their links: one GET each.

    A page that fails beside others gets a message and a budget of its own. So do all if the message comes again.
    """
    targets, process = crawl_urls_of(message), context()
    if len({robots_url(target.url) for target in targets}) > 1:
        raise InvalidMessage(f"more: its pages have other robots.txt than {targets[0].url}")
    first, headers = targets[0], self.request.headers or {}
    is_redelivered = bool((self.request.delivery_info or {}).get("redelivered"))
    # Of a message whose earlier run failed or was lost, one of the pages may be to blame.
    if len(targets) > 1 and (is_redelivered or LAST_ERROR in headers or DELIVERIES in headers):
        process.frontier.release(first.crawl_id, "page", first.key, host_of(first.url), failed=False)
        alone = Admitted(tuple(map(frontier_url, targets)))
        process.publisher.publish(page_messages(first.domain, first.crawl_id, alone, process.budgets))
        return
    too_complex = limit_was_exceeded(headers)
    completed = process.pages.run(targets, message_id=str(self.request.id), too_complex=too_complex)
    publish_admitted(first, completed)
    for failed, error in completed.failed:
        _fail_alone(failed, error, worker=self.request.hostname or "")


def _fail_alone(page: CrawlUrl, error: Exception, *, worker: str) -> None:
    """Give a page that failed beside others a message and a retry budget of its own."""
    process = context()
    [message] = page_messages(page.domain, page.crawl_id, Admitted((frontier_url(page),)), process.budgets)
    decision = fail_part(
        message,
        error,
        subject=page.url,
        queue=PAGE,
        task="site.page",
        worker=worker,
        policies=app.retries.policies,
        publisher=process.publisher,
        on_outcome=TASK_RUNS.add,
    )
    if isinstance(decision, Dead):
        complete_dead(process.frontier, page, "page")


@task("end_crawl", EndCrawlTask)
def end_crawl(**message: Any) -> None:
    """Complete the record of a crawl that has nothing left, close the crawl, and set its domain's timer back.

    The timer does not fire before: the crawl is active. A crawl that Redis does not know waits for a sweep.
    """
    domain, process = parse_message_domain(message), context()
    crawl = process.frontier.crawl_of(domain, crawl_id_of(message))
    if crawl is not None and process.recorder.end(crawl):
        reset_timer_of(domain)
        if record := read_crawl(process.store, CrawlRef(domain, crawl.id)):
            logger.info("Crawl of %s ended: %s", record.start_url, dict(record.counts))
            publish_events([crawl_ended(record)])


def _fetch(page: CrawlUrl, kind: MessageKind, headers: Mapping[str, Any]) -> FetchResult | None:
    """Return the result for a page of a client's message, or of a start page."""
    process = context()
    former = process.frontier.former(page.crawl_id, page.canonical_key) if page.crawl_id else None
    try:
        result = process.pages.fetch_shared(page, kind, too_complex=limit_was_exceeded(headers), former=former)
    except FetchError as error:
        if page.crawl_id:
            process.pages.release(page, kind, error)
        raise
    target = redirect_of_start_page(page, result) if result and page.crawl_id else None
    if target and not _may_move(page.domain, host_of(target.detail)):
        return replace(target, reason=Reason.MOVED_TO_KNOWN_SITE)
    return result


def reset_timer_of(domain: str) -> None:
    """Set a domain's timer back; without one, start a timer of an incremental pack."""
    process = context()
    process.timers.reset(domain, timeout=process.settings.timer_timeout, callback=incremental_pack_callback(domain))


def publish_admitted(page: CrawlUrl, completed: Completed) -> None:
    """Publish what a completion admitted, or the crawl's end, confirmed; write what is due of the crawl's record."""
    process = context()
    if completed.admitted.urls:
        process.publisher.publish(page_messages(page.domain, page.crawl_id, completed.admitted, process.budgets))
        process.frontier.note_confirmed(page.crawl_id, completed.name)
    if completed.write:
        process.recorder.write_segment(CrawlRef(page.domain, page.crawl_id))
    if completed.ended:
        publish_end(page.domain, page.crawl_id)


def publish_end(domain: str, crawl_id: str) -> None:
    """Publish that a crawl has nothing left, confirmed, then note it; a restored crawl waits for its sweep first."""
    process = context()
    if process.frontier.begin_end(crawl_id):
        process.publisher.publish([site_message("end_crawl", process.budgets, domain=domain, crawl_id=crawl_id)])
        process.frontier.note_end_published(crawl_id)


def _publish_pairs(domain: str, crawl_id: str, links: Sequence[Link], *, depth: int) -> None:
    """Publish `index` and `crawl` of each unseen page, confirmed, and note it only then: a crash loses no link."""
    process = context()
    limits, found = process.policies(domain).settings, {link.canonical_key: link.url for link in links}
    unseen = process.frontier.unseen(
        crawl_id, found, depth=depth, max_pages=limits.max_pages, max_depth=limits.max_depth
    )
    pages = [{"url": url, "domain": domain, "crawl_id": crawl_id, "depth": depth} for url in unseen.values()]
    process.publisher.publish(_pairs(pages))
    process.frontier.note_published(crawl_id, [FrontierUrl(url, key, depth) for key, url in unseen.items()])


def _pairs(pages: Sequence[Mapping[str, Any]]) -> list[Outgoing]:
    """Return the messages `index` and `crawl` of pages with these fields."""
    budgets = context().budgets
    # A page's two messages are far apart, so that the second one finds the result of the first.
    messages = [site_message("index", budgets, **page) for page in pages]
    return messages + [site_message("crawl", budgets, **page) for page in reversed(pages)]


def _may_move(source: str, target: str) -> bool:
    process = context()
    return may_move(source, target, store=process.store, frontier=process.frontier, timers=process.timers)


def _move(page: CrawlUrl, redirect: FetchResult) -> None:
    """Start the crawl again at the host that its start page redirects to, unless others index that host."""
    process, url = context(), redirect.detail
    # Nothing of this crawl is packed, so the pack stays as it is.
    process.timers.stop(page.domain, callback=full_pack_callback(page.domain, page.crawl_id))
    update_crawl(process.store, CrawlRef(page.domain, page.crawl_id), lambda record: replace(record, callback={}))
    crawl, there = process.frontier.crawl(page.crawl_id), host_of(url)
    moves = (crawl.moves if crawl else 0) + 1
    if redirect.reason == Reason.MOVED_TO_KNOWN_SITE:
        logger.warning(
            "%s redirects to %s, a site of its own: the crawl of %s ends here; next: perennial index --crawl %s",
            *(page.url, url, page.domain, url),
        )
    elif moves > MAX_MOVES:
        logger.warning("%s redirects to %s: the crawl moved %d times and ends here", page.url, url, MAX_MOVES)
    elif there != page.domain and process.recorder.has_unfinished(there):
        logger.warning("%s redirects to %s: a crawl of %s goes on, and none begins", page.url, url, there)
    else:
        logger.warning("%s redirects to %s: the crawl of %s moves there", page.url, url, page.domain)
        # The id follows from that of this crawl: if this message runs again, the same crawl goes on.
        moved = {"crawl_id": f"{page.crawl_id}-{moves}", "depth": moves, "moved_from": page.domain}
        process.publisher.publish([site_message("index+crawl", process.budgets, url=url, **moved)])
