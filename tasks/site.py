"""A page's life: index_and_crawl, index, crawl."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from celery.utils.log import get_task_logger

from app.crawl.frontier import LIMIT, Crawl, now
from app.crawl.target import Target
from app.crawl.urls import canonical_key
from app.crawl.values import Gone, Indexed, Redirected, Visit
from app.envelopes import site_message
from app.status import status
from app.timers.arguments import full_pack, incremental_pack, timeout_of
from tasks.base import PageTask, target_of, task
from tasks.context import context

__all__ = ["crawl", "index", "index_and_crawl", "status"]

logger = get_task_logger(__name__)

#: Redirects that a lone `index` follows, and hosts that a crawl is sent on to. Within a crawl each hop is a page.
_MAX_HOPS = 10


@task("index+crawl", PageTask, bind=True)
def index_and_crawl(self: Any, **message: Any) -> None:
    """Index a site from a start page on: start its timer, then index and crawl the page.

    `index_and_crawl.delay("https://site.gov/")` or `delay(domain="site.gov", path="/", scheme="https")`.
    """
    page, here = target_of(message), context()
    timeout = timeout_of(message, default=here.settings.timer_timeout)
    # A redelivered message is the same crawl: its id is the message's.
    crawl = Crawl(page.crawl_id or str(self.request.id), page.domain, page.url, now(), moves=page.depth)
    crawl = here.frontier.begin(crawl)
    here.timers.start(page.domain, timeout=timeout, callback=full_pack(page.domain, crawl.id))
    _publish(page.domain, crawl.id, {page.key: page.url}, depth=0)


@task("index", PageTask)
def index(**message: Any) -> None:
    """Index one page: reset its domain's timer, fetch, store its text. Links are not followed."""
    page, here = target_of(message), context()
    if not page.crawl_id:  # Within a crawl, its open work holds the timer back.
        _reset(page.domain)
    visit = here.crawler.visit(page, "index")
    if visit is None:
        return
    member = here.crawler.keep(page, visit)
    # Only now: a timer that ran out during the fetch packed without this page.
    _reset(page.domain)
    if page.crawl_id:
        here.frontier.finished(page.crawl_id, page.domain, "index", page.key, member=member)
        return
    if member:
        here.frontier.adopt(page.domain, member)
    if isinstance(visit, Redirected) and visit.in_scope and page.depth < _MAX_HOPS:
        onward = site_message("index", here.budgets, url=visit.target, domain=page.domain, depth=page.depth + 1)
        here.publisher.publish([onward])


@task("crawl", PageTask, bind=True)
def crawl(self: Any, **message: Any) -> None:
    """Follow one page's links: each one in scope that this crawl has not seen is indexed and crawled."""
    page, here = target_of(message), context()
    page = replace(page, crawl_id=page.crawl_id or str(self.request.id))
    visit = here.crawler.visit(page, "crawl")
    if visit is None:
        return
    if isinstance(visit, Redirected) and not visit.in_scope and page.depth == 0:
        _move(page, visit.target)
    else:
        _publish(page.domain, page.crawl_id, {canonical_key(url): url for url in _links(visit)}, depth=page.depth + 1)
    here.frontier.finished(page.crawl_id, page.domain, "crawl", page.key)


def _reset(domain: str) -> None:
    here = context()
    here.timers.reset(domain, timeout=here.settings.timer_timeout, callback=incremental_pack(domain))


def _links(visit: Visit) -> tuple[str, ...]:
    """Return where a visit leads within its scope."""
    match visit:
        case Indexed(links=links) | Gone(links=links):
            return links
        case Redirected(target=target, in_scope=True):
            return (target,)
        case _:
            return ()


def _publish(domain: str, crawl_id: str, pages: dict[str, str], *, depth: int) -> None:
    """Publish `index` and `crawl` of each page not seen, confirmed, and note it only then: a crash loses no link."""
    here = context()
    keys = list(pages)
    fresh = [keys[at] for at in here.frontier.unseen(crawl_id, keys, max_pages=here.settings.max_pages)]
    if fresh and depth > here.settings.max_depth:
        here.frontier.cut(crawl_id, LIMIT)
        return
    places = [{"url": pages[key], "domain": domain, "crawl_id": crawl_id, "depth": depth} for key in fresh]
    # The two messages of a page stand far apart, so that its second one finds what the first one fetched.
    messages = [site_message("index", here.budgets, **place) for place in places]
    messages += [site_message("crawl", here.budgets, **place) for place in reversed(places)]
    here.publisher.publish(messages)
    here.frontier.published(crawl_id, fresh)


def _move(page: Target, url: str) -> None:
    """A start page that sends its visitors to another host moves the crawl there."""
    here = context()
    crawl = here.frontier.crawl(page.crawl_id)
    moves = (crawl.moves if crawl else 0) + 1
    if moves > _MAX_HOPS:
        logger.warning("%s redirects to %s: the crawl moved %d times and ends here", page.url, url, _MAX_HOPS)
        return
    logger.warning("%s redirects to %s: the crawl of %s moves there", page.url, url, page.domain)
    here.timers.stop(page.domain)
    here.publisher.publish([site_message("index+crawl", here.budgets, url=url, depth=moves)])
