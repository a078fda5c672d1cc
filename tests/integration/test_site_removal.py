"""`perennial site remove` leaves nothing of a site and touches no other; `block` takes out one page."""

from __future__ import annotations

import json
import time
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from typing import NoReturn

import pytest

from app.broker.connection import connected
from app.broker.delivery import Delivery
from app.broker.errors import DeadSetBusy
from app.broker.headers import is_suspect, unacknowledged
from app.crawl.frontier.values import Crawl, FrontierUrl, Host
from app.crawl.record.removed_sites import note_removed, removed_key
from app.crawl.urls import CrawlUrl
from app.errors import SiteBusy
from app.messages.dead_sets import dead_sets
from app.operations.context import OperatorContext
from app.operations.operators import command_operator
from app.operations.removal import remove_sites
from app.redis_state.lease import lease
from app.sites.removal import SiteRemoval
from app.sites.search_reports import SearchReport, add_to_report, today
from app.sites.site import Site
from app.sites.stored import Start, add_site, read_site, write_start
from app.storage.layout import Page, content_key, page_id, read_content, to_json
from app.timers.stored import StoredTimer, store_timer
from app.timers.timers import full_pack_callback
from app.topology.declare import declare_all
from app.topology.queues import DEAD_SET
from tasks.base import Context
from tests.support.broker import Broker
from tests.support.command import invoked
from tests.support.completing import enter_one

pytestmark = pytest.mark.integration

DOMAIN, OTHER = "a.gov:8080", "b.a.gov"


@pytest.fixture
def process(process: Context) -> Context:
    """Return the context of this process, with the delay queues that a worker declares."""
    settings = process.settings
    with connected(settings.broker) as connection:
        assert not declare_all(connection, settings)
    return process


def fill(process: Context, broker: Broker, domain: str) -> None:
    """Give a domain one of everything."""
    url = f"https://{domain}/x"
    add_site(process.store, Site.of(domain, {"schedule": "1d"}))
    write_start(process.store, domain, Start(datetime.now(UTC), "c"))
    add_to_report(process.store, domain, today(), SearchReport(searches=1))
    crawl = Crawl(f"crawl of {domain}", domain, url, datetime.now(UTC), recorded=True)
    process.recorder.begin(crawl, timer_timeout=30, callback=full_pack_callback(domain, crawl.id).message)
    process.frontier.note_published(crawl.id, [FrontierUrl(url, url, 1)])
    process.frontier.add_line(crawl.id, '{"url":"x"}')
    process.timers.start(domain, timeout=30, callback=full_pack_callback(domain))
    store_timer(process.store, StoredTimer(domain, 30, full_pack_callback(domain)))
    page = Page(canonical_key=url, url=url, domain=domain, path="/x", title="X", body="x")
    process.store.put(content_key(domain, page_id(url)), to_json(page))
    for key in (f"packs/{domain}.json", f"packs/{domain}.announced", f"frames/{domain}/1-a"):
        process.store.put(key, b"{}")
    robots = (f"robots:https://{domain}", f"robots-of:{domain}", f"robots-of:{domain}:bytes")
    for key in (*robots, f"host:{domain}", f"host:{domain}:hold"):
        process.redis.set(f"perennial:{key}", "")
    message = {"url": url, "domain": domain, "crawl_id": crawl.id, "depth": 1}
    for kind in ("page", "index", "reset_timer", "pack_full"):
        broker.post(json.dumps({"type": kind, **message}).encode(), key=kind)
    broker.post(json.dumps({"type": "page", **message}).encode(), exchange="site.dead", key="page")
    broker.post(json.dumps({"type": "page", **message}).encode(), exchange="site.delay.10000", key="site.page")


def leftovers(process: Context, broker: Broker, domain: str) -> list[str]:
    """Return the objects, keys and messages that name a domain, but for the marks of its crawls."""
    found = [
        stat.key for stat in process.store.list("") if f"/{domain}" in stat.key and stat.key != removed_key(domain)
    ]
    keys = sorted(str(key) for key in process.redis.scan_iter("*"))
    found += [key for key in keys if domain in key]
    found += [str(each) for each in process.redis.zrange("perennial:timers", 0, -1) if domain == each]
    found += [DEAD_SET for message in broker.peek(DEAD_SET) if json.loads(message.body)["domain"] == domain]
    return found


def test_nothing_is_left_of_a_removed_site_and_all_of_another(process: Context, broker: Broker) -> None:
    for domain in (DOMAIN, OTHER):
        fill(process, broker, domain)
    before = leftovers(process, broker, OTHER)
    own = leftovers(process, broker, DOMAIN)
    # Without --yes and a terminal nothing is removed.
    invoked("site", "remove", DOMAIN, exit_code=2)
    assert leftovers(process, broker, DOMAIN) == own
    printed = invoked("site", "remove", DOMAIN, "--yes")
    assert printed.splitlines() == [
        f"{DOMAIN}: its settings, its pack, 1 stored pages, 1 crawl records, 2 open messages",
        f"{DOMAIN}: deleted, and 1 dead letters; workers drop its messages, searchers follow",
    ]
    assert leftovers(process, broker, DOMAIN) == []
    assert leftovers(process, broker, OTHER) == before
    assert len(before) >= 10
    assert process.frontier.progress(DOMAIN).crawl is None
    # It was no delivery of a message that waits: repeated removals would make those of other sites suspect.
    queues = ("site.delay.10000", "site.page", "site.index", "site.timer", "site.pack")
    waiting = [Delivery.of(message, queue) for queue in queues for message in broker.take(queue)]
    assert sum(OTHER in each.body.decode() for each in waiting) == 5
    assert not any(unacknowledged(each) or is_suspect(each) or each.redelivered for each in waiting)
    assert invoked("site", "remove", DOMAIN, "--yes").startswith(f"{DOMAIN}: there is nothing")


def test_a_removal_says_what_there_was_before_it_began(process: Context, broker: Broker) -> None:
    fill(process, broker, DOMAIN)
    before = SiteRemoval(DOMAIN, process.store, process.redis).inventory()
    assert (before.has_settings, before.messages) == (True, 2)
    assert remove_sites(OperatorContext(process.settings, command_operator()), [DOMAIN]) == ([before], 1)


def test_a_late_message_of_a_removed_site_does_nothing(process: Context, broker: Broker) -> None:
    fill(process, broker, DOMAIN)
    invoked("site", "remove", DOMAIN, "--yes")
    url, crawl_id = f"https://{DOMAIN}/x", f"crawl of {DOMAIN}"
    entered = enter_one(
        process.frontier, crawl_id, DOMAIN, FrontierUrl(url, url, 1), Host(DOMAIN, 0, 1), message_id="m"
    )
    assert not entered.fetch
    assert process.pages.fetch_shared(CrawlUrl(url, DOMAIN, url, crawl_id), "index") is None
    [mark] = list(process.redis.scan_iter("perennial:crawl:*"))
    assert process.redis.ttl(mark) > 0


def test_a_crawl_may_have_the_id_of_one_that_was_removed_with_its_site(process: Context, broker: Broker) -> None:
    fill(process, broker, DOMAIN)
    invoked("site", "remove", DOMAIN, "--yes")
    crawl = Crawl(f"crawl of {DOMAIN}", DOMAIN, f"https://{DOMAIN}/", datetime.now(UTC), recorded=True)
    process.recorder.begin(crawl, timer_timeout=30, callback=full_pack_callback(DOMAIN, crawl.id).message)
    assert process.frontier.crawl(crawl.id) == crawl
    assert process.frontier.state(crawl.id) == "running"


def test_removal_waits_for_a_request_that_has_not_ended(
    process: Context, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(process, broker, DOMAIN)
    flight = f"perennial:host:en.{DOMAIN}:flight"
    process.redis.zadd(f"perennial:host:{DOMAIN}:flight", {"lost": 1})  # Its lease has expired.
    process.redis.zadd(flight, {"page": 2**40})
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) > 2:  # Until the second of the removal is over.
            return
        assert read_content(process.store, content_key(DOMAIN, page_id(f"https://{DOMAIN}/x"))) is not None
        if len(waits) == 2:
            process.redis.delete(flight)

    monkeypatch.setattr("app.operations.removal.time.sleep", sleep)
    invoked("site", "remove", DOMAIN, "--yes")
    assert len(waits) == 3
    assert leftovers(process, broker, DOMAIN) == []


def test_apply_with_prune_removes_what_a_file_does_not_name_after_all_other_changes(
    process: Context, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(process, broker, DOMAIN)
    file = process.settings.data_dir / "sites.toml"
    file.write_text(f'[[sites]]\ndomain = "{OTHER}"\n')
    assert f"would remove {DOMAIN}" in invoked("site", "apply", str(file), "--prune", "--dry-run")
    assert f"not in the file: {DOMAIN}" in invoked("site", "apply", str(file))
    invoked("site", "apply", str(file), "--prune", exit_code=2)
    file.write_text(f'{file.read_text()}[[sites]]\ndomain = "d.gov"\n')
    monkeypatch.setattr("app.operations.removal.remove_sites", partial(remove_sites, packer_wait=0.1))
    with lease(process.redis, f"pack:{DOMAIN}"), pytest.raises(SiteBusy):
        invoked("site", "apply", str(file), "--prune", "--yes")
    assert read_site(process.store, "d.gov") is not None
    add_site(process.store, Site.of("c.gov", {}))
    assert f"remove {DOMAIN}" in invoked("site", "apply", str(file), "--prune", "--yes")
    assert leftovers(process, broker, DOMAIN) == leftovers(process, broker, "c.gov") == []


def test_apply_with_prune_completes_a_removal_that_was_killed_and_no_site_that_is_crawled_again(
    process: Context, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for domain in (DOMAIN, OTHER, "c.gov"):
        fill(process, broker, domain)
    SiteRemoval(DOMAIN, process.store, process.redis).stop(at=int(time.time()) + 1)
    invoked("site", "remove", OTHER, "--yes")
    with monkeypatch.context() as patch:
        patch.setattr("app.broker.dead_letters.DeadSets.forget", failing)
        with pytest.raises(KeyboardInterrupt):
            remove_sites(OperatorContext(process.settings, command_operator()), ["c.gov"])
    # It was removed, and is crawled again without settings.
    page = Page(canonical_key="x", url="https://b.a.gov/x", domain=OTHER, path="/x", title="X", body="x")
    process.store.put(content_key(OTHER, page_id("x")), to_json(page))
    file = process.settings.data_dir / "sites.toml"
    file.write_text("")
    planned = invoked("site", "apply", str(file), "--prune", "--dry-run")
    assert planned.splitlines()[:-1] == [f"would remove {DOMAIN}", "would remove c.gov"]
    assert DOMAIN not in invoked("site", "apply", str(file))
    invoked("site", "apply", str(file), "--prune", "--yes")
    assert leftovers(process, broker, DOMAIN) == leftovers(process, broker, "c.gov") == []
    assert leftovers(process, broker, OTHER) == [content_key(OTHER, page_id("x"))]
    assert invoked("site", "apply", str(file), "--prune") == "0 sites declared, 0 differ\n"


def failing(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def announced(broker: Broker) -> list[str]:
    """Return the domains whose packs the orchestrator is to read again."""
    bodies = [json.loads(message.body) for message in broker.take("orchestrator")]
    return [body["domain"] for body in bodies if body["type"] == "update"]


def test_searchers_unload_a_removed_site_while_another_process_works_on_the_dead_letters(
    process: Context, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(process, broker, DOMAIN)
    monkeypatch.setattr("app.broker.dead_letters.reading.LEASE_TIMEOUT", 0.3)
    with closing(dead_sets(process.settings).iter_letters()) as letters:
        next(letters)
        deleted = f"^{DOMAIN} is deleted: its settings, .*; dead letters are not deleted: another process works on"
        with pytest.raises(DeadSetBusy, match=deleted):
            remove_sites(OperatorContext(process.settings, command_operator()), [DOMAIN])
    assert announced(broker) == [DOMAIN]
    invoked("site", "remove", DOMAIN, "--yes")
    assert leftovers(process, broker, DOMAIN) == []


def test_a_site_that_a_packer_has_holds_up_no_other_removal_and_the_error_names_what_completes_its_own(
    process: Context, broker: Broker
) -> None:
    for domain in (DOMAIN, OTHER):
        fill(process, broker, domain)
    ops = OperatorContext(process.settings, command_operator())
    with (
        lease(process.redis, f"pack:{DOMAIN}"),
        pytest.raises(SiteBusy, match=rf"^{OTHER} is deleted: .*; {DOMAIN} .* run `perennial site remove {DOMAIN}`"),
    ):
        remove_sites(ops, [DOMAIN, OTHER], packer_wait=0.1)
    assert announced(broker) == [OTHER]
    assert leftovers(process, broker, OTHER) == []
    assert DEAD_SET in leftovers(process, broker, DOMAIN)
    invoked("site", "remove", DOMAIN, "--yes")
    assert leftovers(process, broker, DOMAIN) == []


def test_a_page_of_a_removed_site_begins_no_crawl_after_redis_lost_its_keys(process: Context) -> None:
    url = f"https://{DOMAIN}/x"
    note_removed(process.store, DOMAIN, 1_000)
    assert not process.recorder.restore(CrawlUrl(url, DOMAIN, url, "c", 1))
    assert process.recorder.restore(CrawlUrl(url, OTHER, url, "d", 1))
    assert process.frontier.crawl("c") is None
    assert not list(process.store.list(f"crawls/{DOMAIN}/"))


def test_a_blocked_page_is_gone_and_is_requested_no_more_until_it_is_unblocked(
    process: Context, broker: Broker
) -> None:
    url = f"https://{DOMAIN}/x"
    add_site(process.store, Site.of(DOMAIN, {"schedule": "1d"}))
    page = Page(canonical_key=url, url=url, domain=DOMAIN, path="/x", title="X", body="x")
    process.store.put(content_key(DOMAIN, page_id(url)), to_json(page))
    invoked("site", "block", url)
    content = read_content(process.store, content_key(DOMAIN, page_id(url)))
    assert getattr(content, "why", "") == "blocked"
    [posted] = [json.loads(message.body) for message in broker.take("site.pack")]
    assert (posted["type"], posted["page_ids"]) == ("pack_incremental", [page_id(url)])
    result = process.pages.fetch_shared(CrawlUrl(url, DOMAIN, url), "index")
    assert result is not None
    assert result.reason == "blocked"
    invoked("site", "unblock", url)
    site = read_site(process.store, DOMAIN)
    assert site is not None
    assert site.blocked == ()
    assert site.schedule == "1d"
