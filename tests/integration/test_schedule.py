"""Scheduled crawls: each that is due is posted once, whatever processes and Redis do."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.crawl.frontier_values import Crawl, FoundPage
from app.crawl_record.crawls import list_crawls
from app.sites.scheduler import Scheduler
from app.sites.site import Site
from app.sites.stored import Start, read_start, update_site, write_site, write_start
from app.timers.timers import full_pack
from tasks import timers
from tasks.base import Context
from tasks.timers import start_due_crawls
from tests.integration.test_tick import broker, process
from tests.support.broker import Broker

pytestmark = pytest.mark.integration

__all__ = ["broker", "process"]

DOMAIN = "a.gov"


@pytest.fixture
def posted(process: Context, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that looks for due crawls at a time, and returns what was posted."""

    def start(now: datetime) -> list[dict[str, Any]]:
        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return now

        monkeypatch.setattr(timers, "datetime", Clock)
        process.redis.delete("perennial:sites:read")
        start_due_crawls()
        return [json.loads(message.body) for message in broker.take("site.index")]

    return start


def add(process: Context, **fields: Any) -> Site:
    site = Site.of(DOMAIN, fields)
    write_site(process.store, site, etag=None)
    return site


def begin(process: Context, crawl_id: str, at: datetime) -> Crawl:
    crawl = Crawl(crawl_id, DOMAIN, f"https://{DOMAIN}/", at, own=True)
    return process.records.begin(crawl, timer_timeout=30, callback=full_pack(DOMAIN, crawl_id).message)


def test_a_site_is_crawled_at_once_and_then_after_each_interval(process: Context, posted: Any) -> None:
    urls = [f"https://en.{DOMAIN}/", f"https://{DOMAIN}/de/"]
    site = add(process, schedule="1h", scope="suffix", start_urls=urls)
    now = site.created + timedelta(seconds=1)
    [message] = posted(now)
    assert (message["type"], message["url"], message["domain"]) == ("index+crawl", urls[0], DOMAIN)
    process.records.end(begin(process, message["crawl_id"], now))
    assert posted(now + timedelta(minutes=59)) == []
    [second] = posted(now + timedelta(minutes=61))
    assert second["crawl_id"] != message["crawl_id"]


def test_the_crawl_after_a_damaged_start_is_another_one_than_the_first(process: Context, posted: Any) -> None:
    site = add(process, schedule="1h")
    [first] = posted(site.created)
    process.records.end(begin(process, first["crawl_id"], site.created))
    process.store.put(f"starts/{DOMAIN}.json", b"?")
    [second] = posted(site.created + timedelta(hours=2))
    assert second["crawl_id"] != first["crawl_id"]


def test_what_was_due_during_an_outage_starts_once(process: Context, posted: Any) -> None:
    site = add(process, schedule="*/10 * * * *")
    write_start(process.store, DOMAIN, Start(site.created - timedelta(days=3), "c-0"))
    now = site.created
    [message] = posted(now)
    process.records.end(begin(process, message["crawl_id"], now))
    assert posted(now + timedelta(seconds=1)) == []
    assert len(posted(now + timedelta(minutes=10))) == 1


def test_no_second_crawl_starts_while_one_runs_waits_or_is_paused(process: Context, posted: Any) -> None:
    site = add(process, schedule="1m")
    now = site.created
    [message] = posted(now)
    assert posted(now + timedelta(minutes=5)) == []  # Its message waits.
    crawl = begin(process, message["crawl_id"], now)
    process.frontier.note_published(crawl.id, [FoundPage(f"https://{DOMAIN}/", f"https://{DOMAIN}/", 0)])
    assert posted(now + timedelta(minutes=6)) == []
    process.redis.flushdb()  # A sweep restores the crawl.
    assert posted(now + timedelta(minutes=7)) == []
    process.records.restore_crawl(list_crawls(process.store, DOMAIN)[0].ref)
    process.records.end(crawl)
    assert len(posted(now + timedelta(minutes=8))) == 1


def test_a_start_without_any_effect_is_repeated_after_an_hour(process: Context, posted: Any) -> None:
    site = add(process, schedule="10m")
    [message] = posted(site.created)
    assert posted(site.created + timedelta(minutes=59)) == []
    assert len(posted(site.created + timedelta(minutes=61))) == 1
    assert message["crawl_id"].startswith("a.gov-2")


def test_two_workers_that_meet_one_due_crawl_post_the_same_crawl(process: Context) -> None:
    site = add(process, schedule="1h")
    ids = {crawl.crawl_id for _ in range(2) for crawl in Scheduler(process.store).due(site.created)}
    assert len(ids) == 1


def test_a_loss_of_redis_starts_nothing_again(process: Context, posted: Any) -> None:
    site = add(process, schedule="1d")
    [message] = posted(site.created)
    process.records.end(begin(process, message["crawl_id"], site.created))
    process.redis.flushdb()
    assert posted(site.created + timedelta(hours=2)) == []
    assert read_start(process.store, DOMAIN) == Start(site.created, message["crawl_id"])


def test_a_changed_paused_or_deleted_site_holds_at_the_next_look(process: Context, posted: Any) -> None:
    site = add(process, schedule="1h", state="paused")
    assert posted(site.created) == []
    update_site(process.store, DOMAIN, lambda former: former.changed({"state": "active"}))  # type: ignore[union-attr]
    [message] = posted(site.created)
    process.records.end(begin(process, message["crawl_id"], site.created))
    update_site(process.store, DOMAIN, lambda former: former.changed({"schedule": "1m"}))  # type: ignore[union-attr]
    [second] = posted(site.created + timedelta(minutes=2))
    process.records.end(begin(process, second["crawl_id"], datetime.now(UTC)))
    process.store.delete(f"sites/{DOMAIN}.json")
    assert posted(site.created + timedelta(days=2)) == []


def test_only_one_process_looks_in_five_seconds(process: Context, broker: Broker) -> None:
    add(process, schedule="1h")
    start_due_crawls()
    broker.take("site.index")
    process.store.delete(f"starts/{DOMAIN}.json")
    start_due_crawls()
    assert broker.take("site.index") == []
