"""Every URL of a crawl has a reason: in the record, in the commands, and in totals."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

import tasks.site
from app.crawl.frontier.values import Crawl, FrontierUrl, Host
from app.crawl.page import complete_dead, complete_lost
from app.crawl.parse.classify import FetchResult, Limits, classify
from app.crawl.parse.extract.lexbor import LexborExtractor
from app.crawl.policy import CrawlPolicy
from app.crawl.record.crawls import latest_crawl
from app.crawl.record.reasons import Reason
from app.crawl.urls import CrawlUrl, Link, Scope
from app.errors import ResourceNotFound
from app.http.response import Response
from app.sites.site import Site
from app.sites.status import status
from app.sites.stored import site_key
from app.timers.timers import full_pack_callback
from tasks.base import Context
from tests.support.command import invoked
from tests.support.completing import complete_one, complete_page, enter_one

pytestmark = pytest.mark.integration

DOMAIN = "a.gov"
HOST = Host(DOMAIN, 0, 2)


def url(name: str) -> str:
    return f"https://{DOMAIN}/{name}"


def target(name: str, depth: int = 1) -> CrawlUrl:
    return CrawlUrl(url(name), DOMAIN, url(name), "c", depth)


@pytest.fixture
def policy(process: Context) -> CrawlPolicy:
    """Return the policy of a crawl `c` that has begun, of at most 12 pages and two links from its start page."""
    crawl = Crawl("c", DOMAIN, url(""), datetime.now(UTC), recorded=True)
    process.recorder.begin(crawl, timer_timeout=30, callback=full_pack_callback(DOMAIN, "c").message)
    policy = process.policies(DOMAIN)
    return replace(policy, settings=replace(policy.settings, max_pages=12, max_depth=2))


def complete(
    process: Context, policy: CrawlPolicy, name: str, given: str | FetchResult, *, depth: int = 1, crawl_id: str = "c"
) -> None:
    """Store and complete a page, given by its HTML or its result, as a worker does, without a request."""
    if isinstance(given, str):
        response = Response(url(name), 200, {"content-type": "text/html"}, given.encode())
        result = classify(response, scope=Scope(DOMAIN), extractor=LexborExtractor(), limits=Limits())
    else:
        result = given
    page = replace(target(name, depth), crawl_id=crawl_id)
    process.url_runs.store_results([(page, result)])
    complete_page(process, page, result, policy=policy)


def links(*names: str, rel: str = "") -> str:
    return "".join(f'<a href="/{name}" rel="{rel}">{name}</a>' for name in names)


def reasons(process: Context) -> dict[str, int]:
    return status(DOMAIN, settings=process.settings).reasons


def test_each_url_of_a_crawl_has_its_reason(process: Context, policy: CrawlPolicy) -> None:
    home = "<title>Home</title>Welcome here" + links("a", "copy", "old", "none", "secret", "x/y/x/y/x/y")
    complete(process, policy, "", home + links("login", "a", rel="nofollow"))
    complete(process, policy, "a", "<title>A</title>All about amber" + links("deep"), depth=2)
    complete(process, policy, "copy", "<title>A</title>All about amber" + links("deep"), depth=2)
    complete(process, policy, "print", '<title>P</title>To print<link rel="canonical" href="/a">')
    complete(
        process,
        policy,
        "old",
        FetchResult("redirected", "redirect", url("a"), links=(Link(url("a"), url("a")),), status=301),
    )
    complete(process, policy, "none", FetchResult("gone", "404", status=404))
    complete(process, policy, "secret", FetchResult("skipped", Reason.ROBOTS, "Disallow: /secret"))
    found = {
        row["url"]: (row["state"], row["reason"], row["detail"])
        for row in map(json.loads, invoked("urls", DOMAIN).splitlines())
    }
    assert found == {
        url(""): ("indexed", "indexed", ""),
        url("a"): ("indexed", "indexed", ""),
        url("copy"): ("indexed", "duplicate", url("a")),
        url("print"): ("indexed", "canonical", url("a")),
        url("old"): ("redirected", "redirect", url("a")),
        url("none"): ("gone", "404", ""),
        url("secret"): ("skipped", "robots", "Disallow: /secret"),
        url("login"): ("excluded", "nofollow", ""),
        url("x/y/x/y/x/y"): ("excluded", "repeated-segments", ""),
        url("deep"): ("excluded", "max-depth", ""),
    }  # fmt: skip
    assert reasons(process) == {
        "indexed": 2, "duplicate": 1, "canonical": 1, "redirect": 1, "404": 1, "robots": 1, "nofollow": 1,
        "repeated-segments": 1, "max-depth": 1,
    }  # fmt: skip
    assert "recorded: excluded: nofollow" in invoked("explain", url("login"))


def test_a_status_says_that_robots_txt_demands_a_delay_only_where_the_site_has_a_shorter_one(
    process: Context, policy: CrawlPolicy
) -> None:
    for own, delay, shown in ((None, 3, 3), (5, 5, None), (5, 7, 7)):
        process.store.put(site_key(DOMAIN), Site.of(DOMAIN, {"delay": own}).to_json())
        key = f"k{delay}"
        complete_one(process.frontier, "c", "page", key, host=Host(DOMAIN, delay, 1), max_pages=99)
        assert status(DOMAIN, settings=process.settings).crawl_delay == shown


def test_the_totals_and_the_excluded_urls_of_an_ended_crawl_are_in_the_store(
    process: Context, policy: CrawlPolicy
) -> None:
    complete(process, policy, "", "Welcome" + links(*map(str, range(600)), rel="nofollow"))
    crawl = process.frontier.crawl("c")
    assert crawl is not None
    process.recorder.end(crawl)
    record = latest_crawl(process.store, DOMAIN)
    assert record is not None
    assert 590 <= record.reasons["nofollow"] <= 610
    process.redis.flushdb()
    assert reasons(process) == record.reasons
    assert len(invoked("urls", DOMAIN, "--reason", "nofollow").splitlines()) == 500
    for reason, exit_code in (("404", 0), ("robots", 0), ("nofolow", 2)):
        invoked("urls", DOMAIN, "--reason", reason, exit_code=exit_code)


def test_a_page_that_is_found_by_another_link_is_no_longer_excluded(process: Context, policy: CrawlPolicy) -> None:
    complete(process, policy, "", "Welcome" + links("a", rel="nofollow"))
    assert reasons(process)["nofollow"] == 1
    complete(process, policy, "b", "B" + links("a"))
    complete(process, policy, "a", "<title>A</title>Amber")
    assert "nofollow" not in reasons(process)


def test_the_pages_beyond_max_pages_are_counted_and_the_crawl_is_cut(process: Context, policy: CrawlPolicy) -> None:
    complete(process, policy, "", "Welcome" + links(*map(str, range(15))))
    assert reasons(process) == {"waiting": 12, "max-pages": 3, "indexed": 1}
    assert process.frontier.figures("c").is_cut


def test_broken_links_are_listed_with_the_pages_that_have_them(process: Context, policy: CrawlPolicy) -> None:
    complete(process, policy, "", "Welcome" + links("a", "none", "down"))
    complete(process, policy, "a", "Amber" + links("none"))
    complete(process, policy, "none", FetchResult("gone", "404", status=404))
    enter_one(process.frontier, "c", DOMAIN, FrontierUrl(url("down"), url("down"), 1), HOST, message_id="m")
    process.frontier.release("c", "page", url("down"), HOST.name, failed=True, error="ServerError: 500")
    complete_dead(process.frontier, target("down"), "page")
    error = "1 attempt failed, the last with: ServerError: 500"
    assert invoked("broken-links", DOMAIN, exit_code=1).splitlines() == [
        f"{url('none')}: 404", f"  on {url('')}", f"  on {url('a')}",
        f"{url('down')}: dead-lettered ({error})", f"  on {url('')}",
    ]  # fmt: skip
    [none, down] = json.loads(invoked("broken-links", DOMAIN, "--json", exit_code=1))
    assert none == {
        "url": url("none"), "status": 404, "reason": "404", "detail": "", "number": 2, "pages": [url(""), url("a")]
    }  # fmt: skip
    assert down["detail"] == error


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_page_that_was_never_fetched_is_explained_with_the_page_that_leads_to_it(
    process: Context, policy: CrawlPolicy, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    monkeypatch.setenv("REDIS_URL", process.settings.redis)
    complete(process, policy, "", "Welcome" + links("down"))
    [found] = process.frontier.open_urls("c")
    if is_lost:
        complete_lost(process.frontier, DOMAIN, "c", [found])
    else:
        named = {"url": found.url, "domain": DOMAIN, "crawl_id": "c", "depth": 1, "referrer": found.referrer}
        tasks.site.page.on_dead_letter((), named)
    explained = json.loads(invoked("explain", url("down"), "--json"))
    assert (explained["reason"], explained["referrer"]) == ("lost" if is_lost else "dead-lettered", url(""))


def test_a_page_between_two_attempts_is_explained_with_its_error_and_the_next_attempt(
    process: Context, policy: CrawlPolicy
) -> None:
    for number in (1, 2):
        enter_one(process.frontier, "c", DOMAIN, FrontierUrl(url("a"), url("a"), 1), HOST, message_id="m")
        process.frontier.release("c", "page", url("a"), HOST.name, failed=True, error=f"ServerError: {number}")
    found: dict[str, Any] = json.loads(invoked("explain", url("a"), "--json"))
    assert found["failures"] | {"at": 0} == {"number": 2, "error": "ServerError: 2", "at": 0}
    assert found["next_attempt"] == found["failures"]["at"] + 2 * process.settings.retry_timeout_ms / 1_000
    assert "2 attempts failed, the last with: ServerError: 2; waits since" in invoked("explain", url("a"))
    complete(process, policy, "a", "Amber")
    assert json.loads(invoked("explain", url("a"), "--json"))["failures"] is None


def test_a_csv_export_holds_no_formula(process: Context, policy: CrawlPolicy) -> None:
    complete(process, policy, "a", FetchResult("skipped", "content-type", "=cmd()"))
    [row] = csv.DictReader(io.StringIO(invoked("urls", DOMAIN, "--format", "csv")))
    assert (row["url"], row["reason"], row["detail"]) == (url("a"), "content-type", "'=cmd()")


def test_a_domain_without_a_record_is_an_error(process: Context) -> None:
    with pytest.raises(ResourceNotFound, match="has no crawl record"):
        invoked("urls", "b.gov")
