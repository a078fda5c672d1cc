"""Crawls of a site in one process: conditional requests, unwritten unchanged pages, lost links, budgets, soft 404s."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest

import tasks.site
from app.broker.errors import Postpone
from app.crawl.frontier.robots_cache import ParsedFiles
from app.crawl.frontier.values import Crawl, FrontierUrl, Host, host_keys
from app.crawl.page import complete_dead
from app.crawl.reports.explanation import explain_url
from app.crawl.urls import CrawlUrl, canonical_key
from app.errors import ServerError
from app.pack.manifest import read_manifest
from app.sites.crawl_policies import SitePolicies
from app.sites.site import Site as Declared
from app.sites.status import status
from app.sites.stored import add_site, site_key
from app.sites.sweep import Sweep
from app.storage.layout import (
    CONTENT_VERSION,
    Page,
    content_key,
    content_prefix,
    frames_prefix,
    manifest_key,
    page_id,
    read_content,
)
from app.storage.store import Stat
from app.timers.timers import full_pack_callback
from tasks.base import Context
from tasks.pack import pack_full
from tests.servers.site import Answer, Request, Site, failure, in_letters, page, redirect, reply, robots, with_etag
from tests.support.broker import Broker
from tests.support.command import invoked
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

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
    begun = Crawl(crawl_id, site.domain, site.url, datetime.now(UTC), recorded=True)
    callback = full_pack_callback(site.domain, crawl_id).message
    process.recorder.begin(begun, timer_timeout=30, callback=callback, scheduled=scheduled)
    process.frontier.rebuild(crawl_id, [], [FrontierUrl(site.url, site.url, 0)])
    [refill] = process.frontier.refill(stalled=60)
    waiting = deque(refill.admitted.urls)
    while waiting:
        each = waiting.popleft()
        found = (each.depth, each.referrer, each.redirects, each.role)
        target = CrawlUrl(each.url, site.domain, canonical_key(each.url), crawl_id, *found)
        try:
            waiting += process.pages.run([target], message_id=each.url).admitted.urls
        except ServerError:
            complete_dead(process.frontier, target, "page")
    process.recorder.end(begun)
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
    pages = content_prefix(site.domain)
    before = dict(process.store.list_versions(pages))
    requests = crawl(process, site, "two")
    assert sorted(request.path for request in requests) == sorted(PAGES)
    assert [request.headers.get("if-none-match") for request in requests] == [validator] * 4
    assert dict(process.store.list_versions(pages)) == before
    assert reasons(process, site) == {reason: 4}
    assert packed(process, site, "two") == 4
    begun = Crawl("cancelled", site.domain, site.url, datetime.now(UTC), recorded=True)
    process.recorder.begin(begun, timer_timeout=30, callback={})
    invoked("cancel", site.domain)
    process.recorder.end(begun)
    assert [request.headers.get("if-none-match") for request in crawl(process, site, "three")] == [validator] * 4


def test_a_crawl_of_unchanged_pages_leaves_the_pack_as_it_is_and_announces_nothing(
    process: Context, site: Site
) -> None:
    def objects() -> list[Stat]:
        return [*process.store.list(frames_prefix(site.domain)), process.store.stat(manifest_key(site.domain))]

    for crawl_id in ("one", "two"):
        crawl(process, site, crawl_id)
        pack_full(domain=site.domain, crawl_id=crawl_id)
        before = objects()
    broker = Broker(process.settings.broker)
    assert len(broker.take("orchestrator")) == 1
    sweep = Sweep(process.store, process.frontier, process.timers, process.recorder, timeout=60)
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


def test_a_start_page_that_fails_is_explained_and_shows_that_its_site_is_unreachable(
    process: Context, site: Site
) -> None:
    site.set("/", failure(500))
    begun = Crawl("one", site.domain, site.url, datetime.now(UTC), recorded=True)
    process.recorder.begin(begun, timer_timeout=30, callback={})
    process.frontier.note_published("one", [FrontierUrl(site.url, site.url, 0)])
    start = CrawlUrl(site.url, site.domain, site.url, "one")
    for task in (tasks.site.index, tasks.site.crawl, tasks.site.index):
        with pytest.raises(ServerError):
            task.run(url=site.url, domain=site.domain, crawl_id="one")
    failures = explain_url(process.frontier, process.store, start, retry_ms=1_000).failures
    assert failures
    assert (failures.number, failures.error[:12]) == (2, "ServerError:")
    [unreachable] = process.frontier.unreachable()
    assert (unreachable.domain, unreachable.failing) == (site.domain, 1)
    assert process.frontier.open_messages(site.domain) == 2


def test_a_crawl_of_the_schedule_requests_no_page_that_is_not_due(process: Context, site: Site) -> None:
    process.store.put(site_key(site.domain), Declared.of(site.domain, {"max_page_interval": "7d"}).to_json())
    crawl(process, site, "one")
    with patch("app.crawl.url_runs.time.time", return_value=time.time() + 100):
        crawl(process, site, "two")
    assert crawl(process, site, "three", scheduled=True) == []
    assert reasons(process, site) == {"not-due": 4}


def test_a_page_that_is_not_due_and_not_stored_is_requested_though_its_host_came_to_need_a_delay(
    process: Context, site: Site
) -> None:
    def declare(**fields: Any) -> None:
        declared = Declared.of(site.domain, {"max_page_interval": "7d", **fields})
        process.store.put(site_key(site.domain), declared.to_json())

    declare()
    crawl(process, site, "one")
    with patch("app.crawl.url_runs.time.time", return_value=time.time() + 100):
        crawl(process, site, "two")
    declare(delay=0.05)
    url_runs = process.url_runs
    with patch.object(url_runs, "policies", SitePolicies(process.store, process.settings)):
        begun = Crawl("three", site.domain, site.url, datetime.now(UTC), recorded=True)
        process.recorder.begin(begun, timer_timeout=30, callback={}, scheduled=True)
        process.store.delete(content_key(site.domain, page_id(site.at("/amber"))))
        waiting = [CrawlUrl(site.at(path), site.domain, site.at(path), "three", 1) for path in ("/new", "/amber")]

        def run() -> list[CrawlUrl]:
            with suppress(Postpone):
                left = {each.url for each in process.pages.run(waiting, message_id="m").admitted.urls}
                waiting[:] = [each for each in waiting if each.url in left]
            return waiting

        before = len(site.requests)
        eventually(lambda: not run(), "both pages are requested")
        assert sorted(request.path for request in site.requests[before:]) == ["/amber", "/new"]
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
    process.url_runs._robots._parsed = ParsedFiles()
    requests = crawl(process, site, "two")
    assert sorted(request.path for request in requests) == ["/", "/amber", "/cedar"]
    assert packed(process, site, "two") == 3
    explained = explain_url(
        process.frontier, process.store, CrawlUrl(site.at("/deep"), site.domain, site.at("/deep")), retry_ms=1
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


@pytest.mark.parametrize("stored", ["another page", "another version", "damaged"])
def test_a_page_that_is_not_stored_as_the_former_crawl_found_it_is_requested_whole_and_stored_again(
    process: Context, site: Site, stored: str
) -> None:
    crawl(process, site, "one")
    target = CrawlUrl(site.at("/amber"), site.domain, site.at("/amber"))
    key = content_key(site.domain, page_id(target.canonical_key))
    found = process.store.get(key)
    if stored == "another version":
        other = json.loads(found.data) | {"version": CONTENT_VERSION + 1, "links": "of another form"}
        process.store.put(key, json.dumps(other).encode())
    elif stored == "damaged":
        process.store.put(key, b"?")
    else:  # As by another message, without a new entry.
        site.set("/amber", versioned("/amber", "Later text", '"2"'))
        process.url_runs.store_results([(target, process.url_runs.fetch(process.url_runs.prepare(target)))])
        site.set("/amber", versioned("/amber"))
    sent = {request.path: request.headers.get("if-none-match") for request in crawl(process, site, "two")}
    assert sent == {"/": '"1"', "/amber": None, "/cedar": '"1"', "/deep": '"1"'}
    assert process.store.get(key) == found
    assert (packed(process, site, "two"), status(site.domain, settings=process.settings).damaged) == (4, [])


def test_other_rules_for_links_need_the_pages_again(process: Context, site: Site) -> None:
    crawl(process, site, "one")
    with patch("app.crawl.policy._SELECTION_VERSION", "other"):
        requests = crawl(process, site, "two")
    assert [request.headers.get("if-none-match") for request in requests] == [None] * 4


BUDGETS = {
    "max_depth": 5,
    "max_query_variants": 3,
    "max_pattern_pages": 4,
    "max_identical_texts": 2,
    "max_redirects": 2,
    "max_repeated_segments": 1,
}


def test_a_crawl_ends_within_the_budgets_of_its_site(process: Context) -> None:
    facets = [f"/shop?colour={number}&size=1" for number in range(7)]
    listed = [f"/list/x?page={number}" for number in range(7)]
    same = [f"/month/{number}" for number in range(7)]
    hops = [f"/hop/{name}" for name in ("a", "b", "c", "d", "e")]
    with Site({"/": page("Home", "Text", links=[*facets, *listed, *same, hops[0], "/f/x/f"])}) as site:
        for number, path in enumerate((*facets, *listed)):
            site.set(path, page("Page", f"Text of {in_letters(number)}"))
        for path in same:
            site.set(path, page("Month", "No events"))
        for path, onward in pairwise(hops):
            site.set(path, redirect(onward))
        add_site(process.store, Declared.of(site.domain, BUDGETS))
        crawl(process, site, "one")
        found = status(site.domain, settings=process.settings)
        paths = site.paths()
    requested = {start: sum(path.startswith(start) for path in paths) for start in ("/shop", "/list/", "/hop/")}
    assert requested == {"/shop": 3, "/list/": 4, "/hop/": 3}
    assert found.reasons["query-variants"] == 4
    assert found.reasons["pattern-pages"] == 3
    assert found.reasons["identical-texts"] > 0
    assert (found.reasons["too-many-redirects"], found.reasons["repeated-segments"]) == (1, 1)
    assert found.budgets == {name: value for name, value in BUDGETS.items() if name != "max_depth"}
    assert "stopped by max_query_variants 3, max_pattern_pages 4, max_identical_texts 2" in str(found)


@pytest.mark.parametrize(("limit", "before"), [(2, []), (4, [f"/{'a' * 1_000}"])])
def test_no_page_has_vanished_from_a_crawl_that_follows_a_part_of_the_links_of_a_page(
    process: Context, site: Site, monkeypatch: pytest.MonkeyPatch, limit: int, before: list[str]
) -> None:
    crawl(process, site, "one")
    assert packed(process, site, "one") == 4
    monkeypatch.setattr(process.url_runs, "limits", replace(process.url_runs.limits, links=limit))
    site.set("/", page("Home", "More links", links=["/new", *before, "/amber", "/cedar"]))
    site.set("/new", page("New"))
    crawl(process, site, "two")
    assert packed(process, site, "two") == 5


def test_pages_that_were_never_stored_do_not_count_as_indexed(process: Context, site: Site) -> None:
    site.set("/amber", failure(403))
    site.set("/cedar", reply(b"PK\x03\x04", content_type="application/zip"))
    crawl(process, site, "one")
    assert packed(process, site, "one") == process.frontier.figures("one").counts["indexed"] == 1


HUB = page("Hub", "Text", links=["/", "/deep"], extra_head='<meta name="robots" content="noindex">')
HOP, LEAF, GONE = redirect("/deep"), page("Leaf", "It leads to no page."), failure(404)


@pytest.mark.parametrize(
    ("path", "before", "status", "kept", "after", "left"),
    [
        ("/", versioned("/"), 403, 4, page("Home", links=["/amber"]), 3),
        ("/amber", versioned("/amber"), 403, 4, GONE, 2),
        ("/amber", versioned("/amber"), 500, 4, LEAF, 3),
        ("/amber", HUB, 304, 3, GONE, 2),
        ("/amber", HUB, 503, 3, GONE, 2),
        ("/amber", HOP, 403, 3, GONE, 2),
        ("/amber", HOP, 503, 3, GONE, 2),
    ],
)
def test_a_page_that_fails_stays_with_the_pages_that_it_leads_to_until_it_is_read_again_or_gone(
    process: Context, site: Site, path: str, before: Answer, status: int, kept: int, after: Answer, left: int
) -> None:
    site.set(path, before)
    crawl(process, site, "one")
    site.set(path, failure(status))
    for crawl_id in ("two", "three"):
        crawl(process, site, crawl_id)
        assert packed(process, site, crawl_id) == kept
    site.set(path, after)
    crawl(process, site, "four")
    assert packed(process, site, "four") == left


def test_a_redirect_to_another_url_of_the_same_page_is_followed_and_the_page_keeps_its_own_url(
    process: Context,
) -> None:
    with Site({"/": page("Home", links=["/a", "/b?utm_source=news", "/c", "/d"])}) as site:
        site.set("/a", redirect("/a;jsessionid=1"))
        site.set("/a;jsessionid=1", page("With a session"))
        site.set("/b?utm_source=news", redirect("/b"))
        site.set("/b", page("Without a campaign"))
        site.set("/c", redirect("/c"))
        site.set("/d", redirect("/d?sessionid=0"))
        for number in range(9):
            site.set(f"/d?sessionid={number}", redirect(f"/d?sessionid={number + 1}"))
        crawl(process, site, "one")
        found = status(site.domain, settings=process.settings).reasons
        stored = (read_content(process.store, stat.key) for stat in process.store.list(content_prefix(site.domain)))
        pages = {each.title: each.url for each in stored if isinstance(each, Page)}
    assert pages == {
        "Home": site.at("/"),
        "With a session": site.at("/a"),
        "Without a campaign": site.at("/b?utm_source=news"),
    }
    assert (site.hits("/c"), found["invalid-redirect"]) == (1, 2)
    assert [path for path in site.paths() if path.startswith("/d")] == ["/d", *(f"/d?sessionid={n}" for n in range(5))]


def test_the_next_request_waits_for_the_delays_of_a_redirect_and_of_the_request_that_followed_it(
    process: Context,
) -> None:
    with Site({"/": redirect("/;jsessionid=1"), "/;jsessionid=1": page("Home")}) as site:
        add_site(process.store, Declared.of(site.domain, {"delay": 9}))
        process.url_runs.request_and_classify(process.url_runs.prepare(CrawlUrl(site.url, site.domain, site.url)))
        assert "/;jsessionid=1" in site.paths()
        assert 9_000 < process.redis.pttl(host_keys(site.domain)[2]) <= 18_000


@pytest.mark.parametrize(("of_site", "of_robots_txt", "delay"), [(2, 5, 5), (5, 2, 5), (5, "", 5), (0, 0, 0)])
def test_a_host_gets_one_request_in_the_longer_of_the_delays_of_its_site_and_of_its_robots_txt(
    process: Context, of_site: float, of_robots_txt: float | str, delay: float
) -> None:
    with Site({"/robots.txt": robots(f"User-agent: *\nCrawl-delay: {of_robots_txt}")}) as site:
        add_site(process.store, Declared.of(site.domain, {"delay": of_site}))
        concurrency = 1 if delay else process.settings.host_concurrency
        found = process.url_runs.prepare(CrawlUrl(site.url, site.domain, site.url)).host
    assert found == Host(site.domain, delay, concurrency)


def oops(name: str, *links: str) -> Answer:
    """Answer with an error page; its links have no text."""
    anchors = "".join(f'<a href="{link}"></a>' for link in links)
    return reply(f"<!doctype html><title>Oops</title><h1>Oops</h1><p>Sorry, there is no {name} here</p>{anchors}")


class SoftSite(Site):
    """A site that answers 200 to any path, with a page that repeats the path or its last part."""

    def route(self, request: Request) -> Answer:
        path = request.path
        if path in self._routes:
            return self._routes[path]
        return oops(path if "old" in path else path.rpartition("/")[2], "/from-an-error-page")


@pytest.fixture
def soft_site(process: Context) -> Iterator[SoftSite]:
    process.pages.roles._checks_soft_404 = True
    links = ["/docs/amber", "/docs/missing", "/old/path", "/docs/birch"]
    with SoftSite({"/": page("Home", "Welcome", links=links)}) as site:
        site.set("/docs/amber", page("A", "Amber"))
        site.set("/docs/birch", page("B", "Birch"))
        yield site


def checks(site: Site) -> list[int]:
    """Return the positions of the soft-404 checks in the requests for pages."""
    pages = [path for path in site.paths() if path not in ("/robots.txt", "/sitemap.xml")]
    return [at for at, path in enumerate(pages) if path.startswith("/perennial-soft-404-check-")]


def test_pages_with_the_text_of_the_error_page_are_not_indexed(process: Context, soft_site: SoftSite) -> None:
    crawl(process, soft_site, "one")
    assert reasons(process, soft_site) == {"indexed": 3, "soft-404": 2}
    assert packed(process, soft_site, "one") == 3
    assert checks(soft_site) == [1]  # After the start page, before all others.
    assert "/from-an-error-page" not in soft_site.paths()

    # A page that is removed becomes an error page: what was stored of it goes.
    soft_site.remove("/docs/birch")
    crawl(process, soft_site, "two")
    assert reasons(process, soft_site)["soft-404"] == 3
    assert packed(process, soft_site, "two") == 2
    assert len(checks(soft_site)) == 2


def test_a_start_page_that_is_also_the_error_page_is_indexed(process: Context, soft_site: SoftSite) -> None:
    soft_site.set("/", oops("", "/docs/missing", "/docs/amber"))
    crawl(process, soft_site, "one")
    assert reasons(process, soft_site) == {"indexed": 2, "soft-404": 1}


@pytest.mark.parametrize("status", [404, 503])
def test_a_site_with_proper_errors_has_no_soft_404(
    process: Context, soft_site: SoftSite, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    soft_site.set("/robots.txt", robots(""))
    soft_site.set("/docs/missing", oops("missing"))
    soft_site.set("/old/path", oops("path"))
    monkeypatch.setattr(soft_site, "route", lambda request: soft_site._routes.get(request.path, failure(status)))
    crawl(process, soft_site, "one")
    assert reasons(process, soft_site) == {"indexed": 5}
    assert len(checks(soft_site)) == 1


def test_a_soft_404_check_whose_response_takes_too_much_time_is_not_requested_again(
    process: Context, soft_site: SoftSite
) -> None:
    started = Crawl("one", soft_site.domain, soft_site.url, datetime.now(UTC), recorded=True)
    process.recorder.begin(started, timer_timeout=30, callback={})
    url = soft_site.at("/perennial-soft-404-check-0")
    target = CrawlUrl(url, soft_site.domain, url, "one", depth=1, role="soft-404-check")
    completed = process.pages.run([target], message_id="m", too_complex=True)
    assert (completed.ended, checks(soft_site)) == (True, [])
