"""Scheduled crawls: each that is due is posted once, whatever processes and Redis do."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta
from typing import Any

import pytest

from app.crawl.frontier.values import Crawl, FrontierUrl
from app.crawl.record.crawls import list_crawls
from app.sites.site import Site
from app.sites.stored import Start, add_site, read_start, write_start
from app.timers.timers import full_pack_callback
from tasks import ticks
from tasks.base import Context
from tasks.site import crawl, end_crawl, index, index_and_crawl
from tasks.site import page as page_task
from tasks.ticks import start_due_crawls
from tests.servers.site import Site as Server
from tests.servers.site import page
from tests.support.broker import Broker

pytestmark = pytest.mark.integration

DOMAIN = "a.gov"


@pytest.fixture
def posted(process: Context, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that looks for due crawls at a time, and returns what was posted."""

    def start(now: datetime) -> list[dict[str, Any]]:
        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return now

        monkeypatch.setattr(ticks, "datetime", Clock)
        process.redis.delete("perennial:sites:read")
        start_due_crawls()
        return [json.loads(message.body) for message in broker.take("site.index")]

    return start


def add(process: Context, **fields: Any) -> Site:
    site = Site.of(DOMAIN, fields)
    add_site(process.store, site)
    return site


def begin(process: Context, crawl_id: str, at: datetime) -> Crawl:
    crawl = Crawl(crawl_id, DOMAIN, f"https://{DOMAIN}/", at, recorded=True)
    process.recorder.begin(crawl, timer_timeout=30, callback=full_pack_callback(DOMAIN, crawl_id).message)
    return crawl


def test_a_site_is_crawled_at_once_and_then_after_each_interval(process: Context, posted: Any) -> None:
    urls = [f"https://en.{DOMAIN}/", f"https://{DOMAIN}/de/"]
    site = add(process, schedule="1h", scope="suffix", start_urls=urls)
    now = site.created + timedelta(seconds=1)
    [message] = posted(now)
    assert (message["type"], message["url"], message["domain"]) == ("index+crawl", urls[0], DOMAIN)
    process.recorder.end(begin(process, message["crawl_id"], now))
    assert posted(now + timedelta(minutes=59)) == []
    [second] = posted(now + timedelta(minutes=61))
    assert second["crawl_id"] != message["crawl_id"]


def test_what_was_due_during_an_outage_starts_once(process: Context, posted: Any) -> None:
    site = add(process, schedule="*/10 * * * *")
    write_start(process.store, DOMAIN, Start(site.created - timedelta(days=3), "c-0"))
    now = site.created
    [message] = posted(now)
    process.recorder.end(begin(process, message["crawl_id"], now))
    assert posted(now + timedelta(seconds=1)) == []
    assert len(posted(now + timedelta(minutes=10))) == 1


def test_no_second_crawl_starts_while_one_runs_waits_or_is_paused(process: Context, posted: Any) -> None:
    site = add(process, schedule="1m")
    now = site.created
    [message] = posted(now)
    assert posted(now + timedelta(minutes=5)) == []  # Its message waits.
    crawl = begin(process, message["crawl_id"], now)
    process.frontier.note_published(crawl.id, [FrontierUrl(f"https://{DOMAIN}/", f"https://{DOMAIN}/", 0)])
    assert posted(now + timedelta(minutes=6)) == []
    process.redis.flushdb()  # A sweep restores the crawl.
    assert posted(now + timedelta(minutes=7)) == []
    process.recorder.restore_crawl(list_crawls(process.store, DOMAIN)[0].ref)
    process.recorder.end(crawl)
    assert len(posted(now + timedelta(minutes=8))) == 1


def test_a_start_without_any_effect_is_repeated_after_an_hour(process: Context, posted: Any) -> None:
    site = add(process, schedule="10m")
    [message] = posted(site.created)
    assert posted(site.created + timedelta(minutes=59)) == []
    assert len(posted(site.created + timedelta(minutes=61))) == 1
    assert message["crawl_id"].startswith("a.gov-2")


def test_a_loss_of_redis_starts_nothing_again(process: Context, posted: Any) -> None:
    site = add(process, schedule="1d")
    [message] = posted(site.created)
    process.recorder.end(begin(process, message["crawl_id"], site.created))
    process.redis.flushdb()
    assert posted(site.created + timedelta(hours=2)) == []
    assert read_start(process.store, DOMAIN) == Start(site.created, message["crawl_id"])


def test_only_one_process_looks_in_five_seconds(process: Context, broker: Broker) -> None:
    add(process, schedule="1h")
    start_due_crawls()
    broker.take("site.index")
    process.store.delete(f"starts/{DOMAIN}.json")
    start_due_crawls()
    assert broker.take("site.index") == []


def test_the_schedule_leaves_out_pages_that_stay_unchanged_and_a_crawl_by_hand_does_not(
    process: Context, broker: Broker, posted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message that beat's look and the crawl publish is run, at the time of a moved clock.

    The start page is requested in each crawl.
    """
    clock = [time.time()]
    monkeypatch.setattr("app.crawl.url_runs.time.time", lambda: clock[0])
    run = {"index+crawl": index_and_crawl, "index": index, "crawl": crawl, "page": page_task, "end_crawl": end_crawl}
    etag = {"ETag": '"1"'}
    routes = {"/": page("Home", links=["/a", "/b"], headers=etag), "/a": page("A", headers=etag)}

    def carry_out(messages: list[dict[str, Any]], at: datetime) -> list[str]:
        """Run messages and all that they publish; return the paths of pages that were requested."""
        before, clock[0] = len(server.requests), at.timestamp()
        while messages:
            for message in messages:
                run[message.pop("type")](**message)
            queues = ("site.index", "site.crawl", "site.page")
            messages = [json.loads(each.body) for queue in queues for each in broker.take(queue)]
        return sorted(path for path in server.paths()[before:] if path in ("/", "/a", "/b"))

    with Server({**routes, "/b": page("B", headers=etag)}) as server:
        every = {"schedule": "1h", "start_urls": [server.url], "delay": 0, "max_page_interval": "7d"}
        site = Site.of(server.domain, every)
        add_site(process.store, site)
        starts = [site.created + timedelta(hours=hours) for hours in range(3)]
        requested = [carry_out(posted(at), at) for at in starts]
        by_hand = {"type": "index+crawl", "url": server.url, "domain": server.domain, "crawl_id": "by-hand"}
        requested.append(carry_out([by_hand], starts[-1]))
    assert requested == [["/", "/a", "/b"], ["/", "/a", "/b"], ["/"], ["/", "/a", "/b"]]
