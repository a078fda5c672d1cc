"""A crawl of a site that was crawled before: conditional requests, no writes of unchanged pages, and no lost link."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from unittest.mock import patch

import pytest

from app.crawl.frontier.robots_cache import ParsedFiles
from app.crawl.frontier.values import Crawl, FoundPage
from app.crawl.reports.explanation import explain_url
from app.crawl.urls import Target, canonical_key
from app.pack.manifest import read_manifest
from app.sites.site import Site as Declared
from app.sites.status import status
from app.sites.stored import add_site, site_key
from app.sites.sweep import Sweep
from app.storage.folder import FolderStore
from app.storage.layout import CONTENT_VERSION, content_key, manifest_key, pack_key, page_id
from app.storage.store import Stat
from app.timers.timers import full_pack
from tasks.base import Context
from tasks.pack import pack_full
from tests.integration.test_tick import process
from tests.servers.site import Answer, Request, Site, in_letters, page, robots, with_etag
from tests.support.broker import Broker

pytestmark = pytest.mark.integration

__all__ = ["process"]

PAGES = {"/": ["/amber", "/cedar"], "/amber": ["/deep"], "/cedar": [], "/deep": ["/"]}


def versioned(path: str, text: str = "Text", etag: str = '"1"') -> Answer:
    made = page(path.strip("/") or "home", f"{text} of {path}", links=PAGES[path], headers={"ETag": etag})
    return with_etag(etag, made)


@pytest.fixture
def site() -> Iterator[Site]:
    """Return a site of four pages with validators, of which two are reached by another page only."""
    with Site({path: versioned(path) for path in PAGES}) as site:
        yield site


def crawl(process: Context, site: Site, crawl_id: str, *, scheduled: bool = False) -> list[Request]:
    """Crawl the site as workers do, without a broker. Return the requests for pages."""
    before = len(site.requests)
    begun = Crawl(crawl_id, site.domain, site.url, datetime.now(UTC), own=True)
    callback = full_pack(site.domain, crawl_id).message
    process.records.begin(begun, timer_timeout=30, callback=callback, scheduled=scheduled)
    process.frontier.rebuild(crawl_id, [], [FoundPage(site.url, site.url, 0)])
    [refill] = process.frontier.refill(stalled=60)
    waiting = deque(refill.admitted.messages)
    while waiting:
        each = waiting.popleft()
        found = (each.depth, each.referrer, each.redirects, each.role)
        target = Target(each.url, site.domain, canonical_key(each.url), crawl_id, *found)
        completed = process.work_of(each.role).run(target, message_id=each.url)
        waiting += completed.admitted.messages
    process.records.end(begun)
    return [request for request in site.requests[before:] if request.path in {*PAGES, "/new"}]


def packed(process: Context, site: Site, crawl_id: str) -> int:
    """Pack a crawl; return the number of pages in the pack."""
    pack_full(domain=site.domain, crawl_id=crawl_id)
    return read_manifest(process.store, site.domain).pages


def reasons(process: Context, site: Site) -> dict[str, int]:
    return status(site.domain, settings=process.settings).reasons


@pytest.mark.parametrize(("validator", "reason"), [('"1"', "not-modified"), (None, "same-content")])
def test_unchanged_pages_are_not_written_and_are_requested_with_the_validators_that_they_have(
    process: Context, site: Site, validator: str | None, reason: str
) -> None:
    for path in PAGES if validator is None else ():
        site.set(path, page(path, "Text without a validator", links=PAGES[path]))
    assert [request.headers.get("if-none-match") for request in crawl(process, site, "one")] == [None] * 4
    with patch.object(FolderStore, "put", autospec=True, side_effect=FolderStore.put) as put:
        requests = crawl(process, site, "two")
    assert sorted(request.path for request in requests) == sorted(PAGES)
    assert [request.headers.get("if-none-match") for request in requests] == [validator] * 4
    assert [call.args[1] for call in put.call_args_list if call.args[1].startswith("content/")] == []
    assert reasons(process, site) == {reason: 4}
    assert packed(process, site, "two") == 4
    assert [request.headers.get("if-none-match") for request in crawl(process, site, "three")] == [validator] * 4


def test_a_crawl_of_unchanged_pages_leaves_the_pack_as_it_is_and_announces_nothing(
    process: Context, site: Site
) -> None:
    def objects() -> list[Stat]:
        return [process.store.stat(key) for key in (pack_key(site.domain), manifest_key(site.domain))]

    for crawl_id in ("one", "two"):
        crawl(process, site, crawl_id)
        pack_full(domain=site.domain, crawl_id=crawl_id)
        before = objects()
    broker = Broker(process.settings.broker)
    assert len(broker.take("orchestrator")) == 1
    sweep = Sweep(process.store, process.frontier, process.timers, process.records, timeout=60)
    assert not [action for action in sweep.run(site.domain) if "pack_full" in str(action)]
    pack_full(domain=site.domain, crawl_id="one")  # It comes late, and is older than what the pack has.
    assert objects() == before
    pack_full(domain=site.domain, crawl_id="two", force=True)
    assert read_manifest(process.store, site.domain).generation == 2
    site.set("/cedar", versioned("/cedar", "Later text", '"2"'))
    crawl(process, site, "three")
    pack_full(domain=site.domain, crawl_id="three")
    assert (read_manifest(process.store, site.domain).generation, len(broker.take("orchestrator"))) == (3, 2)


def test_changed_new_and_vanished_pages_are_met(process: Context, site: Site) -> None:
    crawl(process, site, "one")
    assert packed(process, site, "one") == 4
    changed = page("home", "Other text", links=["/cedar", "/new"], headers={"ETag": '"2"'})
    site.set("/", with_etag('"2"', changed))
    site.set("/new", page("New", "A new page"))
    site.remove("/deep")
    crawl(process, site, "two")
    assert reasons(process, site) == {"indexed": 2, "not-modified": 1}
    assert packed(process, site, "two") == 3


def test_a_crawl_of_the_schedule_requests_no_page_that_is_not_due(process: Context, site: Site) -> None:
    process.store.put(site_key(site.domain), Declared.of(site.domain, {"max_page_interval": "7d"}).to_json())
    crawl(process, site, "one")
    with patch("app.crawl.page.time.time", return_value=time.time() + 100):
        crawl(process, site, "two")
    assert crawl(process, site, "three", scheduled=True) == []
    assert reasons(process, site) == {"not-due": 4}
    assert packed(process, site, "three") == 4
    assert len(crawl(process, site, "four")) == 4
    process.store.delete(content_key(site.domain, page_id(site.at("/deep"))))
    assert [request.path for request in crawl(process, site, "five", scheduled=True)] == ["/deep"]
    assert packed(process, site, "five") == 4


def test_pages_of_a_folder_that_robots_txt_comes_to_forbid_go_and_their_reason_names_the_line(
    process: Context, site: Site
) -> None:
    site.set("/robots.txt", robots("User-agent: *\nDisallow: /other/"))
    crawl(process, site, "one")
    assert packed(process, site, "one") == 4
    site.set("/robots.txt", robots("User-agent: *\n\nDisallow: /deep  # since today"))
    process.redis.delete(f"perennial:robots:{site.url.rstrip('/')}")  # As a day later.
    process.steps._robots._parsed = ParsedFiles()
    requests = crawl(process, site, "two")
    assert sorted(request.path for request in requests) == ["/", "/amber", "/cedar"]
    assert packed(process, site, "two") == 3
    explained = explain_url(
        process.frontier, process.store, Target(site.at("/deep"), site.domain, site.at("/deep")), retry_ms=1
    )
    assert explained.stored == "gone (robots)"
    assert explained.entry is not None
    assert explained.entry.explanation == "gone: robots (robots.txt, line 3: Disallow: /deep  # since today)"


def test_stored_pages_that_identical_texts_leave_out_stay_however_often_the_site_is_crawled(
    process: Context, site: Site
) -> None:
    """The last of them is the only one that leads to another page. What vanished elsewhere goes."""
    add_site(process.store, Declared.of(site.domain, {"max_identical_texts": 2}))
    months = [f"/month/{number}" for number in range(1, 8)]
    site.set("/", page("home", "Text", links=[*months[:6], "/late", "/old"]))
    site.set("/late", page("late", "More months", links=months[6:]))
    site.set("/old", page("old", "It vanishes"))
    site.set("/deep", page("deep", "Only the last month leads here"))
    for number, path in enumerate(months):
        site.set(path, page("month", f"Events of {in_letters(number)}", links=["/deep"] if path == months[-1] else []))
    crawl(process, site, "one")
    assert packed(process, site, "one") == 11
    for path in months:
        site.set(path, page("month", "No events"))
    site.set("/", page("home", "Text", links=[*months[:6], "/late"]))
    for crawl_id in ("two", "three", "four"):
        crawl(process, site, crawl_id)
        assert reasons(process, site)["identical-texts"] == 4
        assert packed(process, site, crawl_id) == 10


def test_a_page_whose_stored_object_is_another_one_is_requested_whole(process: Context, site: Site) -> None:
    crawl(process, site, "one")
    target = Target(site.at("/amber"), site.domain, site.at("/amber"))
    site.set("/amber", versioned("/amber", "Later text", '"2"'))
    process.pages.store(
        target, process.pages.get(process.steps.begin(target))
    )  # As by another message, without a new entry.
    site.set("/amber", versioned("/amber"))
    requests = crawl(process, site, "two")
    sent = {request.path: request.headers.get("if-none-match") for request in requests}
    assert sent == {"/": '"1"', "/amber": None, "/cedar": '"1"', "/deep": '"1"'}


@pytest.mark.parametrize("version", [CONTENT_VERSION - 1, CONTENT_VERSION + 1])
def test_a_stored_page_of_another_version_is_requested_whole_and_stored_again(
    process: Context, site: Site, version: int
) -> None:
    crawl(process, site, "one")
    key = content_key(site.domain, page_id(site.at("/amber")))
    other = json.loads(process.store.get(key).data) | {"version": version, "links": "of another form"}
    process.store.put(key, json.dumps(other).encode())
    sent = {request.path: request.headers.get("if-none-match") for request in crawl(process, site, "two")}
    assert sent == {"/": '"1"', "/amber": None, "/cedar": '"1"', "/deep": '"1"'}
    assert json.loads(process.store.get(key).data)["version"] == CONTENT_VERSION


def test_other_rules_for_links_need_the_pages_again(process: Context, site: Site) -> None:
    crawl(process, site, "one")
    with patch("app.crawl.policy._SELECTION_VERSION", "other"):
        requests = crawl(process, site, "two")
    assert [request.headers.get("if-none-match") for request in requests] == [None] * 4
