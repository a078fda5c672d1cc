"""The messages about a page: index_and_crawl, index, crawl."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from celery.utils.log import get_task_logger

from app.crawl.classify import Skipped, links_of
from app.crawl.crawler import MAX_MOVES, limit_was_exceeded, redirect_of_start_page, redirect_outside_crawl
from app.crawl.frontier import Crawl
from app.crawl.urls import Link, Target
from app.envelopes import site_message
from app.status import status
from app.timers.timers import full_pack, incremental_pack, timeout_of
from tasks.base import PageTask, context, target_of, task

__all__ = ["crawl", "index", "index_and_crawl", "status"]

logger = get_task_logger(__name__)


@task("index+crawl", PageTask, bind=True)
def index_and_crawl(self: Any, **message: Any) -> None:
    """Start a crawl: start the domain's timer, then publish `index` and `crawl` of the start page.

    `index_and_crawl.delay("https://site.gov/")` or `delay(domain="site.gov", path="/", scheme="https")`.
    """
    page, process = target_of(message), context()
    timeout = timeout_of(message, default=process.settings.timer_timeout)
    # The message's id is the crawl's: a redelivered message continues the same crawl.
    crawl_id = page.crawl_id or str(self.request.id)
    process.frontier.crawl_of(page.domain, crawl_id)  # Refuses an id that is taken by a crawl of another domain.
    crawl = Crawl(crawl_id, page.domain, page.url, datetime.now(UTC), moves=page.depth)
    crawl = process.frontier.begin(crawl)
    process.timers.start(page.domain, timeout=timeout, callback=full_pack(page.domain, crawl.id))
    _publish(page.domain, crawl.id, [Link(page.url, page.canonical_key)], depth=0)


@task("index", PageTask, bind=True)
def index(self: Any, **message: Any) -> None:
    """Index one page: fetch it and store its text. Outside of a crawl this resets its domain's timer."""
    page, process = target_of(message), context()
    if not page.crawl_id:  # In a crawl, its open messages hold the timer back.
        _reset_timer(page.domain)
    result = process.crawler.fetch(page, "index", too_complex=limit_was_exceeded(self.request.headers or {}))
    if result is None:
        return
    if isinstance(result, Skipped):
        logger.info("Page skipped: %s: %s (%s); what is stored of it stays", page.url, result.why, result.detail)
    page_id = process.crawler.store(page, result)
    # Again after the fetch: a timer that became due during it packed without this page.
    _reset_timer(page.domain)
    if page.crawl_id:
        process.frontier.complete(page.crawl_id, page.domain, "index", page.canonical_key, page_id=page_id)
        return
    if page_id:
        process.frontier.add_to_latest(page.domain, page_id)
    if url := redirect_outside_crawl(page, result):
        onward = site_message("index", process.budgets, url=url, domain=page.domain, depth=page.depth + 1)
        process.publisher.publish([onward])


@task("crawl", PageTask, bind=True)
def crawl(self: Any, **message: Any) -> None:
    """Follow one page's links: publish `index` and `crawl` of each page in scope that the crawl has not seen."""
    page, process = target_of(message), context()
    page = replace(page, crawl_id=page.crawl_id or str(self.request.id))
    result = process.crawler.fetch(page, "crawl", too_complex=limit_was_exceeded(self.request.headers or {}))
    if result is None:
        return
    if url := redirect_of_start_page(page, result):
        _move(page, url)
    else:
        _publish(page.domain, page.crawl_id, links_of(result), depth=page.depth + 1)
    process.frontier.complete(page.crawl_id, page.domain, "crawl", page.canonical_key)


def _reset_timer(domain: str) -> None:
    process = context()
    process.timers.reset(domain, timeout=process.settings.timer_timeout, callback=incremental_pack(domain))


def _publish(domain: str, crawl_id: str, links: Sequence[Link], *, depth: int) -> None:
    """Publish `index` and `crawl` of each unseen page, confirmed, and note it only then: a crash loses no link."""
    process = context()
    limits = {"max_pages": process.settings.max_pages, "max_depth": process.settings.max_depth}
    unseen = process.frontier.unseen(crawl_id, {link.canonical_key: link.url for link in links}, depth=depth, **limits)
    pages = [{"url": url, "domain": domain, "crawl_id": crawl_id, "depth": depth} for url in unseen.values()]
    # A page's two messages are far apart, so that the second one finds the result of the first.
    messages = [site_message("index", process.budgets, **page) for page in pages]
    messages += [site_message("crawl", process.budgets, **page) for page in reversed(pages)]
    process.publisher.publish(messages)
    process.frontier.note_published(crawl_id, list(unseen))


def _move(page: Target, url: str) -> None:
    """Start the crawl again at the host that its start page redirects to."""
    process = context()
    crawl = process.frontier.crawl(page.crawl_id)
    moves = (crawl.moves if crawl else 0) + 1
    if moves > MAX_MOVES:
        logger.warning("%s redirects to %s: the crawl moved %d times and ends here", page.url, url, MAX_MOVES)
        return
    logger.warning("%s redirects to %s: the crawl of %s moves there", page.url, url, page.domain)
    process.timers.stop(page.domain)
    process.publisher.publish([site_message("index+crawl", process.budgets, url=url, depth=moves)])
