"""Pages that share a message: one that fails leaves it, and all do if the message comes again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.broker.errors import InvalidMessage, Postpone
from app.broker.headers import ITERATION, TRACEBACK, WORKER
from app.crawl.frontier.values import Admitted, Completed, Crawl, FrontierUrl, crawl_key
from app.crawl.page import MOST_PAGES
from app.errors import RobotsUnavailable, ServerError
from app.messages.crawl_messages import page_messages
from app.messages.envelopes import site_message
from app.storage import disk
from app.timers.timers import full_pack_callback
from app.topology.queues import DEAD_SET
from config.routes import PAGE
from config.settings import Settings
from tasks.base import Context
from tasks.site import page as page_task
from tests.servers.site import Site, failure, in_letters, page, robots
from tests.support.broker import Broker
from tests.support.system import running_system
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


@pytest.fixture
def site() -> Iterator[Site]:
    with Site({"/a": page("A"), "/bad": failure(500), "/b": page("B B", links=["/c"])}) as site:
        yield site


@pytest.fixture
def message(process: Context, broker: Broker, site: Site) -> dict[str, Any]:
    """Return the message of three pages of a crawl that has admitted them."""
    begun = Crawl("c", site.domain, site.at("/"), datetime.now(UTC), recorded=True)
    process.recorder.begin(begun, timer_timeout=60, callback=full_pack_callback(site.domain, "c").message)
    process.frontier.rebuild("c", [], [FrontierUrl(site.at(path), site.at(path), 1) for path in ("/a", "/bad", "/b")])
    process.redis.hset(crawl_key("c"), "window", 3)
    assert [len(refill.admitted.urls) for refill in process.frontier.refill(stalled=60)] == [3]
    more = [{"url": site.at(path), "depth": 1} for path in ("/bad", "/b")]
    return {"url": site.at("/a"), "depth": 1, "domain": site.domain, "crawl_id": "c", "more": more}


def test_a_page_that_fails_beside_others_waits_with_a_budget_of_its_own_and_the_others_are_done(
    process: Context, broker: Broker, site: Site, message: dict[str, Any]
) -> None:
    page_task(**message)
    progress = process.frontier.progress(site.domain)
    assert (progress.indexed, progress.done, progress.open) == (2, 2, 2)
    [waiting] = broker.take(f"site.delay.{process.settings.retry_timeout_ms}")
    assert json.loads(waiting.body)["url"] == site.at("/bad")
    assert "more" not in json.loads(waiting.body)
    assert waiting.headers[ITERATION] == 1
    failures = process.frontier.failures("c", "page", site.at("/bad"))
    assert failures
    assert failures.error.startswith("ServerError")
    [admitted] = broker.take(PAGE)
    assert json.loads(admitted.body)["url"] == site.at("/c")


def test_the_letter_of_a_page_that_fails_beside_others_has_the_cause_of_one_that_fails_alone(
    process: Context, broker: Broker, site: Site, message: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServerError, "permanent", True)
    page_task.push_request(hostname="worker@host", called_directly=True, id="m")
    try:
        page_task.run(**message)
    finally:
        page_task.pop_request()
    [letter] = broker.take(DEAD_SET)
    assert letter.headers[WORKER] == "worker@host"
    assert letter.headers[TRACEBACK].startswith("Traceback")
    assert "ServerError" in letter.headers[TRACEBACK]
    progress = process.frontier.progress(site.domain)
    assert (progress.indexed, progress.dead) == (2, 1)


def test_the_pages_of_a_message_are_on_the_disk_together_before_they_are_completed(
    process: Context, broker: Broker, site: Site, message: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_file, complete, noted = disk.sync_file, process.frontier.complete, list[str]()

    def noted_sync(path: str) -> None:
        sync_file(path)
        noted.append(Path(path).name)

    def noted_complete(*arguments: Any, **named: Any) -> Completed:
        noted.append("complete")
        return complete(*arguments, **named)

    monkeypatch.setattr(disk, "sync_file", noted_sync)
    monkeypatch.setattr(process.frontier, "complete", noted_complete)
    page_task(**message)
    assert process.frontier.progress(site.domain).indexed == 2
    assert [name for name in noted if name in (site.domain, "complete")] == [site.domain, "complete"]


@pytest.mark.parametrize("first", [{}, {"url": "/sitemap.xml", "role": "sitemap"}], ids=["page", "sitemap"])
def test_a_message_of_a_lost_run_is_split_without_a_request_and_its_pages_are_not_held_up(
    process: Context, broker: Broker, site: Site, message: dict[str, Any], first: dict[str, str]
) -> None:
    if first:
        message["more"].insert(0, {"url": message["url"], "depth": 1})
        message |= first | {"url": site.at(first["url"])}
    urls = [message["url"], *(each["url"] for each in message["more"])]

    def run(fields: dict[str, Any], *, redelivered: bool) -> None:
        page_task.push_request(id="m", headers={}, delivery_info={"redelivered": redelivered})
        try:
            page_task.run(**fields)
        finally:
            page_task.pop_request()

    with pytest.MonkeyPatch.context() as lost:
        lost.setattr(process.pages, "_work_and_complete", lambda *_, **__: sys.exit())
        with pytest.raises(SystemExit):
            run(message, redelivered=False)
    run(message, redelivered=True)
    alone = [json.loads(each.body) for each in broker.take(PAGE)]
    assert [each["url"] for each in alone] == urls
    assert not any("more" in each for each in alone)
    assert site.paths() == ["/robots.txt"]
    page_task(**{name: value for name, value in alone[-1].items() if name != "type"})
    assert site.paths() == ["/robots.txt", "/b"]


@pytest.mark.long
@pytest.mark.timeout(500)
def test_a_page_that_ends_its_process_in_any_place_of_a_message_is_the_only_one_that_is_dead(
    process: Context, broker: Broker, environment: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    sites, messages = [], []
    with ExitStack() as stack:
        for place in range(MOST_PAGES):
            titles = ["deadly" if number == place else in_letters(number) for number in range(MOST_PAGES)]
            site = stack.enter_context(Site({f"/{number}": page(title) for number, title in enumerate(titles)}))
            sites.append(site)
            begun = Crawl(f"c{place}", site.domain, site.at("/"), datetime.now(UTC), recorded=True)
            process.recorder.begin(begun, timer_timeout=60, callback=full_pack_callback(site.domain, begun.id).message)
            urls = [site.at(f"/{number}") for number in range(MOST_PAGES)]
            process.frontier.rebuild(begun.id, [], [FrontierUrl(url, url, 1) for url in urls])
            process.redis.hset(crawl_key(begun.id), "window", MOST_PAGES)
            first, *more = ({"url": url, "depth": 1} for url in urls)
            fields = {**first, "domain": site.domain, "crawl_id": begun.id, "more": more}
            messages.append(site_message("page", **fields))
        admitted = [len(refill.admitted.urls) for refill in process.frontier.refill(stalled=60)]
        assert admitted == [MOST_PAGES] * MOST_PAGES
        process.publisher.publish(messages)
        quick = {**environment, "RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "2"}
        with running_system(quick, settings, tmp_path, app="tests.support.deadly_pages"):
            eventually(
                lambda: not any(process.frontier.progress(site.domain).open for site in sites), "all end", seconds=200
            )
    counts = [process.frontier.progress(site.domain) for site in sites]
    assert [(each.indexed, each.dead) for each in counts] == [(MOST_PAGES - 1, 1)] * MOST_PAGES
    dead = {json.loads(letter.body)["url"] for letter in broker.take(DEAD_SET)}
    assert dead == {site.at(f"/{place}") for place, site in enumerate(sites)}


def test_pages_of_a_crawl_that_redis_lost_are_indexed_at_once_and_the_crawl_waits_for_its_sweep(
    process: Context, site: Site, message: dict[str, Any]
) -> None:
    process.redis.flushdb()
    page_task(**message)
    assert (process.frontier.restored(), process.frontier.progress(site.domain).indexed) == (["c"], 2)


def test_all_pages_of_a_dead_message_count_as_dead(process: Context, site: Site, message: dict[str, Any]) -> None:
    page_task.on_dead_letter((), message)
    progress = process.frontier.progress(site.domain)
    assert (progress.dead, progress.open) == (3, 0)


def test_pages_whose_robots_txt_is_unavailable_leave_the_window_and_their_failures_are_noted(
    process: Context, site: Site, message: dict[str, Any]
) -> None:
    site.set("/robots.txt", failure(500))
    with pytest.raises(RobotsUnavailable):
        page_task(**message)
    noted = [process.frontier.failures("c", "page", site.at(path)) for path in ("/a", "/bad", "/b")]
    assert [(each.number, each.error[:18]) for each in noted if each] == [(1, "RobotsUnavailable:")] * 3
    assert process.redis.hlen(f"{crawl_key('c')}:admitted") == 0
    assert process.frontier.progress(site.domain).open == 3


def test_pages_of_a_host_that_needs_a_delay_by_now_are_left_after_the_first(
    process: Context, broker: Broker, site: Site, message: dict[str, Any]
) -> None:
    """The page that led to them was of a host without a delay, or its robots.txt has changed since."""
    site.set("/robots.txt", robots("User-agent: *\nCrawl-delay: 1"))

    def ran() -> bool:
        with suppress(Postpone):  # The robots.txt is a request, too.
            page_task(**message)
            return True
        return False

    eventually(ran, "the host had its rest")
    assert site.paths() == ["/robots.txt", "/a"]
    waiting = [json.loads(each.body) for each in broker.take("site.delay.1000")]
    assert [each["url"] for each in waiting] == [site.at("/bad"), site.at("/b")]
    assert not any("more" in each for each in waiting)
    progress = process.frontier.progress(site.domain)
    assert (progress.done, progress.open) == (1, 2)


def test_pages_are_left_after_a_sitemap_whose_response_pauses_the_host(
    process: Context, broker: Broker, site: Site, message: dict[str, Any]
) -> None:
    site.set("/sitemap.xml", failure(503, retry_after="2"))
    unnamed = {"url": site.at("/sitemap.xml"), "depth": 2, "role": "sitemap"}
    page_task(**message | {"more": [unnamed, *message["more"]]})
    assert site.paths() == ["/robots.txt", "/a", "/sitemap.xml"]
    [waiting] = [json.loads(each.body) for each in broker.take(PAGE)]
    assert [each["url"] for each in (waiting, *waiting["more"])] == [site.at("/bad"), site.at("/b")]
    assert process.frontier.progress(site.domain).done == 2


def test_pages_are_left_after_one_with_the_text_of_an_earlier_page_of_the_message(
    process: Context, site: Site, message: dict[str, Any]
) -> None:
    site.set("/bad", page("A"))
    page_task(**message)
    assert site.paths() == ["/robots.txt", "/a", "/bad"]
    assert process.frontier.progress(site.domain).done == 2


def test_only_pages_under_one_robots_txt_share_a_message(
    process: Context, broker: Broker, site: Site, message: dict[str, Any]
) -> None:
    urls = ["http://site.example/a", "https://site.example/b", "http://site.example/c"]
    alone = Admitted(tuple(FrontierUrl(url, url, 1) for url in urls), batch=16)
    bodies = [json.loads(each.body) for each in page_messages("site.example", "c", alone, process.budgets)]
    assert [(each["url"], len(each.get("more", []))) for each in bodies] == [(urls[0], 1), (urls[1], 0)]
    foreign = message | {"more": [{"url": site.at("/b").replace("http://", "https://"), "depth": 1}]}
    with pytest.raises(InvalidMessage, match=r"other robots\.txt"):
        page_task(**foreign)
    assert site.paths() == []
