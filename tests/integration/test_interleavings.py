"""Messages of one domain that overlap in time: the pack is published, and is right in the end."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from app.broker.outgoing import Outgoing
from app.broker.publishing import Publisher
from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.values import Crawl, FrontierUrl
from app.crawl.parse.classify import FetchResult
from app.crawl.urls import CrawlUrl
from app.errors import RobotsUnavailable
from app.pack.manifest import Manifest, read_manifest
from app.pack.packer import PackRun
from app.storage.layout import Page, content_key, from_json, page_id, to_json
from app.timers.timers import full_pack_callback
from config.routes import CRAWL, INDEX, PAGE
from tasks.base import Context
from tasks.pack import pack_full
from tasks.site import crawl, end_crawl, index, index_and_crawl
from tasks.site import page as page_task
from tasks.ticks import sweep, tick
from tasks.timers import start_timer
from tests.integration.test_tick import ticked
from tests.servers.site import Request, Site, Wire, by_host, failure, page, redirect
from tests.support.broker import Broker
from tests.support.completing import complete_page
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

TASKS = {"index+crawl": index_and_crawl, "index": index, "crawl": crawl, "end_crawl": end_crawl, "page": page_task}

DOMAIN = "a.gov"


def begin(process: Context, crawl_id: str, domain: str = DOMAIN) -> None:
    start = Crawl(crawl_id, domain, f"http://{domain}/", datetime.now(UTC), recorded=True)
    process.recorder.begin(start, timer_timeout=60, callback=full_pack_callback(domain, crawl_id).message)


def indexed(process: Context, crawl_id: str, path: str, domain: str = DOMAIN, body: str = "") -> None:
    """Store a page and note it as indexed in a crawl."""
    url = f"http://{domain}{path}"
    content = Page(canonical_key=url, url=url, domain=domain, path=path, title=path, body=body)
    process.store.put(content_key(domain, page_id(url)), to_json(content))
    target = CrawlUrl(url, domain, url, crawl_id, depth=1)
    complete_page(process, target, FetchResult("indexed", page=content))


def test_a_callback_that_is_not_valid_utf_8_is_published_and_delays_no_other_timer(
    process: Context, broker: Broker
) -> None:
    start_timer(domain="a.gov", timeout=0.01, callback_msg={"type": "pack_full", "note": "\ud800"})
    process.timers.start("b.gov", timeout=0.01, callback=full_pack_callback("b.gov", "c"))

    def both() -> bool:
        tick()
        return broker.depth("site.pack") == 2

    eventually(both, "both callbacks")
    assert {json.loads(message.body)["domain"] for message in broker.take("site.pack")} == {"a.gov", "b.gov"}


def test_a_timer_that_is_due_before_its_crawl_is_published_waits_for_the_crawl(
    process: Context, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = Publisher.publish

    def publish_late(publisher: Publisher, messages: Sequence[Outgoing]) -> None:
        monkeypatch.setattr(Publisher, "publish", publish)
        eventually(is_due, "the timer is due")
        tick()
        publish(publisher, messages)

    def is_due() -> bool:
        timer = process.timers.running(DOMAIN)
        return timer is not None and timer.remaining < 0

    monkeypatch.setattr(Publisher, "publish", publish_late)
    index_and_crawl(url=f"http://{DOMAIN}/", timeout=0.05, crawl_id="c")
    assert broker.depths(("site.pack", "site.index", "site.crawl")) == [0, 1, 1]
    assert process.timers.running(DOMAIN) is not None


@pytest.mark.parametrize("by", ["an index", "another crawl"])
def test_a_page_that_is_found_unchanged_while_a_pack_without_it_is_built_gets_no_tombstone(
    process: Context, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    with Site({"/": page("Home"), "/again": page("Again")}) as site:
        again = site.at("/again")
        index(url=again)
        begin(process, "c", site.domain)
        indexed(process, "c", "/", site.domain)
        publish = PackRun.publish

        def publish_late(*args: Any, **options: Any) -> Manifest:
            if by == "an index":
                index(url=again)
            else:
                begin(process, "later", site.domain)
                page_task(url=again, domain=site.domain, crawl_id="later")
            return publish(*args, **options)

        monkeypatch.setattr(PackRun, "publish", publish_late)
        pack_full(domain=site.domain, crawl_id="c")
        stored = process.store.get(content_key(site.domain, page_id(again)))
        assert isinstance(from_json(stored.data), Page)


def test_a_retried_full_pack_does_not_replace_the_pack_of_a_later_crawl(process: Context) -> None:
    begin(process, "old")
    for path in ("/a", "/b", "/c"):
        indexed(process, "old", path)
    begin(process, "new")
    for path in ("/b", "/c", "/d"):
        indexed(process, "new", path, body="rewritten")
    pack_full(domain=DOMAIN, crawl_id="new")
    pack_full(domain=DOMAIN, crawl_id="old")
    packed = read_manifest(process.store, DOMAIN)
    assert (packed.crawl_id, packed.generation, packed.pages) == ("new", 1, 3)


def test_a_page_whose_fetch_lasts_longer_than_the_timer_starts_the_timer_again(
    process: Context, broker: Broker
) -> None:
    released = threading.Event()

    def slow(request: Request, wire: Wire) -> None:
        released.wait(20)
        page("Slow", "text")(request, wire)

    with Site({"/slow": slow}) as site:
        thread = threading.Thread(target=index, kwargs={"url": site.at("/slow")})
        thread.start()
        eventually(lambda: "/slow" in site.paths(), "the page is being fetched")
        ticked(broker)
        eventually(lambda: tick() is None and process.timers.running(site.domain) is None, "the timer is removed")
        released.set()
        thread.join()
        assert process.timers.running(site.domain) is not None


def test_a_page_indexed_outside_of_a_crawl_meanwhile_is_in_the_crawls_pack(process: Context) -> None:
    with Site({"/orphan": page("Orphan", "text")}) as site:
        begin(process, "c", site.domain)
        process.timers.start(site.domain, timeout=60, callback=full_pack_callback(site.domain, "c"))
        indexed(process, "c", "/", site.domain)
        index(url=site.at("/orphan"))
        pack_full(domain=site.domain, crawl_id="c")
        assert read_manifest(process.store, site.domain).pages == 2


def test_two_start_pages_that_redirect_to_each_other_end_the_crawl(process: Context, broker: Broker) -> None:
    with Site({}) as one:
        one.set("/", by_host(one.domain, redirect(f"http://{one.other_domain}/"), redirect(one.at("/"))))
        index_and_crawl(url=one.at("/"), crawl_id="0")
        for _ in range(40):
            messages = broker.take("site.crawl") + broker.take("site.index")
            if not messages:
                break
            for payload in (json.loads(message.body) for message in messages):
                kind = payload.pop("type")
                TASKS[kind](**payload)
        assert messages == []
        assert process.frontier.open_messages(one.domain) == 0


def test_a_start_page_is_requested_once_if_a_sweep_runs_while_its_crawl_begins(
    process: Context, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Frontier.begin

    def sweep_first(frontier: Frontier, crawl: Crawl) -> None:
        """Run a sweep at the moment when the crawl is in the store, and not yet in Redis."""
        monkeypatch.setattr(Frontier, "begin", begun)
        sweep()
        begun(frontier, crawl)

    monkeypatch.setattr(Frontier, "begin", sweep_first)
    with Site({"/": page("Home", "amber", links=["/oak"]), "/oak": page("Oak", "oak", links=["/"])}) as site:
        index_and_crawl(url=site.at("/"), crawl_id="c")
        for _ in range(8):
            tick()
            sweep()
            for payload in (json.loads(each.body) for name in (INDEX, CRAWL, PAGE) for each in broker.take(name)):
                TASKS[payload.pop("type")](**payload)
        assert sorted(site.paths()) == ["/", "/oak", "/robots.txt", "/sitemap.xml"]


def test_an_unavailable_robots_txt_is_not_requested_once_for_every_page(process: Context) -> None:
    with Site({"/robots.txt": failure(503)}) as site:
        for number in range(20):
            with pytest.raises(RobotsUnavailable, match="503"):
                index(url=site.at(f"/{number}"))
        assert 1 <= len(site.paths()) <= 3


def test_an_expired_crawl_leaves_its_domains_set(process: Context) -> None:
    begin(process, "forgotten")
    begin(process, "long")
    process.redis.delete("perennial:crawl:forgotten")
    begin(process, "new")
    assert process.redis.smembers(f"perennial:domain:{DOMAIN}:crawls") == {"long", "new"}


@pytest.mark.parametrize("crawl_id", ["c:open", "c:seen", "\n", "é" * 5_000, "urn:uuid:1"])
def test_an_unusual_crawl_id_does_not_affect_other_crawls(process: Context, crawl_id: str) -> None:
    begin(process, crawl_id)
    begin(process, "c")
    process.frontier.note_published("c", [FrontierUrl("https://a.gov/k", "k", 0)])
    process.frontier.note_published(crawl_id, [FrontierUrl(f"https://a.gov/{key}", key, 0) for key in "kl"])
    assert (process.frontier.figures("c").left, process.frontier.figures(crawl_id).left) == (2, 4)
