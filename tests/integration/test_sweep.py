"""After a loss of Redis a sweep begins again what is due: crawls, packs and timers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis import Redis

from app.crawl.frontier.values import Crawl
from app.crawl.page import complete_dead
from app.crawl.parse.classify import FetchResult
from app.crawl.record.crawls import latest_crawl
from app.crawl.record.keys import CrawlRef
from app.crawl.record.reasons import Reason
from app.crawl.record.segments import latest_entries
from app.crawl.urls import CrawlUrl, Link
from app.operations.overview import Overview
from app.sites.sweep import Sweep
from app.storage.layout import Page, content_key, page_id, to_json
from app.storage.page_parts import PageLink
from app.timers.timers import full_pack_callback, incremental_pack_callback
from tasks.base import Context
from tasks.pack import pack_full as pack_full_task
from tasks.ticks import tick
from tasks.timers import reset_timer, start_timer
from tests.support.broker import Broker
from tests.support.command import invoked
from tests.support.completing import complete_page
from tests.support.scripted import ScriptedSearchClient
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

DOMAIN = "a.gov"


@pytest.fixture
def sweep(process: Context) -> Callable[..., list[str]]:
    """Return a function that sweeps a domain, or all, and returns what was done."""
    sweeper = Sweep(process.store, process.frontier, process.timers, process.recorder, timeout=60)
    return lambda domain="": [str(action) for action in sweeper.run(domain)]


def begin(process: Context, crawl_id: str = "c", *, ago: float = 0.0) -> Crawl:
    started = datetime.now(UTC) - timedelta(seconds=ago)
    crawl = Crawl(crawl_id, DOMAIN, url("start"), started, recorded=True)
    process.recorder.begin(crawl, timer_timeout=30, callback=full_pack_callback(DOMAIN, crawl_id).message)
    return crawl


def url(name: str) -> str:
    return f"https://{DOMAIN}/{name}"


def complete(process: Context, name: str, *links: str, indexed: bool = True) -> None:
    """Run a page of the crawl `c` as a worker does: store it, then complete it with its links."""
    target = CrawlUrl(url(name), DOMAIN, url(name), "c", depth=1)
    found = tuple(Link(url(each), url(each)) for each in links)
    result = FetchResult("gone", "noindex", links=found)
    if indexed:
        linked = tuple(PageLink(each.url) for each in found)
        page = Page(canonical_key=url(name), url=url(name), domain=DOMAIN, path=f"/{name}", links=linked)
        result = FetchResult("indexed", page=page, links=found)
        process.store.put(content_key(DOMAIN, page_id(url(name))), to_json(page))
    complete_page(process, target, result)


def test_the_soft_404_check_and_then_the_sitemaps_of_a_lost_crawl_are_requested_again(
    process: Context, sweep: Callable[..., list[str]]
) -> None:
    begin(process)
    complete(process, "start")
    sitemap = url("sitemap.xml")
    read = FetchResult("skipped", Reason.SITEMAP, "9 of 9 URLs")
    complete_page(process, CrawlUrl(sitemap, DOMAIN, sitemap, "c", depth=2), read)
    process.recorder.flush(CrawlRef(DOMAIN, "c"))
    process.redis.flushdb()
    sweep()
    [check] = [each for refill in process.frontier.refill(stalled=60) for each in refill.admitted.urls]
    assert check.role == "soft-404-check"
    target = CrawlUrl(check.url, DOMAIN, check.url, "c", depth=1)
    completed = complete_page(process, target, FetchResult("skipped", Reason.SOFT_404_CHECK))
    assert [(each.url, each.role) for each in completed.admitted.urls] == [(url("robots.txt"), "sitemap")]


def lose(redis: Redis) -> None:
    redis.flushdb()


def rename_all(redis: Redis) -> None:
    """Leave the keys as another release would, whose keys have another form."""
    for key in list(redis.scan_iter()):
        redis.rename(key, "other-" + str(key))


@pytest.mark.parametrize("lost", [lose, rename_all])
def test_a_crawl_goes_on_after_redis_was_lost_and_its_timer_runs_again(
    process: Context, sweep: Callable[..., list[str]], lost: Callable[[Redis], None]
) -> None:
    begin(process)
    complete(process, "start", "hidden", "broken", indexed=False)
    complete(process, "hidden", "start", "third")
    broken = CrawlUrl(url("broken"), DOMAIN, url("broken"), "c", depth=1)
    complete_dead(process.frontier, broken, "page")
    process.recorder.flush(CrawlRef(DOMAIN, "c"))
    complete(process, "third", "fourth")  # Its entry is lost with Redis: it is fetched again.
    lost(process.redis)
    complete_dead(process.frontier, CrawlUrl(url("third"), DOMAIN, url("third"), "c"), "page")  # It failed meanwhile.
    assert sweep() == [
        f"{DOMAIN}: crawl c is running: 1 pages wait in its backlog again",
        f"{DOMAIN}: timer started: pack_full in 30 s",
    ]
    states = [process.frontier.page_state("c", url(name))["page"] for name in ("start", "hidden", "broken", "third")]
    assert states == ["done", "done", "dead", "waiting"]
    [refill] = process.frontier.refill(stalled=60)
    [check] = refill.admitted.urls
    target = CrawlUrl(check.url, DOMAIN, check.url, "c", depth=1)
    completed = complete_page(process, target, FetchResult("skipped", Reason.SOFT_404_CHECK))
    assert [message.url for message in completed.admitted.urls] == [url("third"), url("robots.txt")]
    timer = process.timers.running(DOMAIN)
    assert timer is not None
    assert timer.callback == full_pack_callback(DOMAIN, "c")
    assert sweep() == []


def test_an_ended_crawl_whose_pack_was_never_made_is_packed(process: Context, sweep: Callable[..., list[str]]) -> None:
    crawl = begin(process)
    complete(process, "start")
    process.recorder.end(crawl)
    process.redis.flushdb()
    assert sweep(DOMAIN) == [f"{DOMAIN}: timer started: pack_full in 30 s"]
    pack_full_task(domain=DOMAIN, crawl_id="c")
    process.redis.flushdb()
    # A page that was written in the same second as the pack may be newer than it.
    assert "pack_full" not in "".join(sweep(DOMAIN))


@pytest.mark.parametrize("message", [{"crawl_id": "c"}, {"force": True}])
def test_the_pack_of_a_crawl_is_due_when_its_timer_has_fired_and_until_a_pack_has_its_pages(
    process: Context, message: dict[str, Any]
) -> None:
    overview = Overview(process.settings, routes=ScriptedSearchClient([]).routes)
    crawl = begin(process, ago=60)
    complete(process, "start")
    process.recorder.end(crawl)
    process.timers.start(DOMAIN, timeout=30, callback=full_pack_callback(DOMAIN, "c"))

    def is_due() -> bool:
        found = overview.packs.read(time.monotonic() + 30).value
        overview.packs.forget()
        shown = "the pack of its latest crawl waits for a packer, or failed" in invoked("status", DOMAIN)
        assert found == ([DOMAIN] if shown else [])
        return shown

    assert not is_due()
    process.timers.delete(DOMAIN)
    assert is_due()
    pack_full_task(domain=DOMAIN, **message)
    assert not is_due()


def test_a_page_that_no_pack_contains_yet_is_packed(process: Context, sweep: Callable[..., list[str]]) -> None:
    page = Page(canonical_key=url("alone"), url=url("alone"), domain=DOMAIN, path="/alone")
    process.store.put(content_key(DOMAIN, page_id(url("alone"))), to_json(page))
    assert sweep() == [f"{DOMAIN}: timer started: pack_incremental in 60 s"]
    timer = process.timers.running(DOMAIN)
    assert timer is not None
    assert timer.callback == incremental_pack_callback(DOMAIN)


@pytest.mark.parametrize("begin_timer", [start_timer, reset_timer])
def test_a_clients_timer_with_its_own_callback_survives_the_loss_of_redis(
    process: Context, broker: Broker, sweep: Callable[..., list[str]], begin_timer: Callable[..., None]
) -> None:
    begin_timer(domain=DOMAIN, timeout=0.05, callback_queue="TIMER", callback_msg={"type": "reset_timer", "timeout": 9})
    process.redis.flushdb()
    assert sweep() == [f"{DOMAIN}: timer started: reset_timer in 0.05 s"]
    process.run_id.note()
    eventually(lambda: tick() is None and broker.depth("site.timer") == 2, "the callback, and the look at the system")
    messages = [json.loads(each.body) for each in broker.take("site.timer")]
    assert {"type": "reset_timer", "domain": DOMAIN, "timeout": 9} in messages
    assert sweep() == []


def test_a_page_of_a_crawl_that_redis_lost_restores_the_crawl_and_a_cancelled_one_stays_cancelled(
    process: Context,
) -> None:
    begin(process)
    process.redis.flushdb()
    target = CrawlUrl(url("k"), DOMAIN, url("k"), "c", depth=1)
    process.recorder.restore(target)
    assert process.frontier.restored() == ["c"]
    restored = process.frontier.crawl("c")
    assert restored is not None
    assert restored.recorded
    invoked("cancel", DOMAIN)
    process.redis.flushdb()
    process.recorder.restore(target)
    assert process.frontier.progress(DOMAIN).state == "cancelled"


def test_a_crawl_whose_message_comes_again_after_a_loss_of_redis_keeps_its_record_and_is_swept(
    process: Context, sweep: Callable[..., list[str]]
) -> None:
    begin(process)
    complete(process, "start", "1")
    process.recorder.flush(CrawlRef(DOMAIN, "c"))
    process.redis.flushdb()
    begin(process)
    assert process.frontier.restored() == ["c"]
    complete(process, "2")
    process.recorder.flush(CrawlRef(DOMAIN, "c"))
    entries = latest_entries(process.store, CrawlRef(DOMAIN, "c"))
    assert {each.url for each in entries.values()} == {url("start"), url("2")}
    assert "crawl c is running: 1 pages wait in its backlog again" in sweep()[0]


def test_crawls_are_paused_resumed_and_cancelled_by_command(process: Context) -> None:
    crawl = begin(process)
    complete(process, "start", "1", "2", "3")
    assert invoked("pause", DOMAIN) == f"crawl c of {DOMAIN} is paused\n"
    assert "(crawl paused)" in invoked("status", DOMAIN)
    record = latest_crawl(process.store, DOMAIN)
    assert record is not None
    assert record.state == "paused"
    invoked("resume", DOMAIN)
    assert process.frontier.progress(DOMAIN).state == "running"
    assert json.loads(invoked("cancel", DOMAIN, "--json")) == {
        "domain": DOMAIN,
        "state": "cancelled",
        "crawls": ["c"],
    }
    assert process.frontier.open_messages(DOMAIN) == 0
    process.recorder.end(crawl)
    record = latest_crawl(process.store, DOMAIN)
    assert record is not None
    assert (record.state, record.counts["cut"]) == ("cancelled", 1)
    assert invoked("repair") == f"{DOMAIN}: timer started: pack_full in 30 s\n"
    assert invoked("repair", DOMAIN) == "nothing was missing\n"


def test_a_crawl_that_is_paused_while_its_last_page_is_in_work_is_done(process: Context) -> None:
    crawl = begin(process)
    invoked("pause", DOMAIN)
    complete(process, "start")
    assert process.recorder.end(crawl)
    record = latest_crawl(process.store, DOMAIN)
    assert record is not None
    assert record.state == "done"
    assert "paused" not in invoked("status", DOMAIN)
