"""A damaged object counts as missing: the other sites go on, pages are fetched again, and an operator reads its key."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import zstandard

from app.broker.errors import Postpone
from app.crawl.frontier.values import Crawl, FrontierUrl, Host
from app.crawl.record.crawls import update_crawl
from app.crawl.record.entries import UrlEntry
from app.crawl.record.keys import CrawlRef
from app.crawl.record.segments import append_segment
from app.errors import ObjectDamaged, StoreError
from app.operations.art import ArtAudit, keep_audit, read_audits
from app.operations.context import OperatorContext
from app.operations.doctor.check import CheckContext
from app.operations.doctor.checks import damaged_objects
from app.operations.letters import NOTES_PREFIX, add_note, notes_of
from app.operations.long_acts import LongActs
from app.operations.operators import command_operator
from app.operations.overview import Overview
from app.operations.site_view import site_view
from app.sites.site import Site as Declared
from app.sites.status import status
from app.sites.stored import Start, add_site, site_key, write_start
from app.sites.sweep import Sweep
from app.storage.damage import MAX_NOTED, DamageNotes
from app.storage.layout import Page, content_key, manifest_key, page_id, read_content, to_json
from app.storage.page_parts import PageLink
from app.storage.store import StoredObject
from app.timers.timers import full_pack_callback
from tasks.base import Context
from tasks.site import end_crawl
from tasks.ticks import sweep, tick
from tasks.timers import start_timer
from tests.integration.test_recrawl import crawl as crawl_site
from tests.integration.test_recrawl import packed, site, versioned
from tests.servers.site import Site, in_letters
from tests.support.broker import Broker
from tests.support.completing import complete_one
from tests.support.scripted import ScriptedSearchClient

pytestmark = pytest.mark.integration

__all__ = ["site"]

DAMAGED, OTHER = "a.gov", "b.gov"


def url(domain: str, name: str = "start") -> str:
    return f"https://{domain}/{name}"


def begin(process: Context, domain: str, crawl_id: str) -> Crawl:
    crawl = Crawl(crawl_id, domain, url(domain), datetime.now(UTC), recorded=True)
    process.recorder.begin(crawl, timer_timeout=30, callback=full_pack_callback(domain, crawl_id).message)
    return crawl


def crawled(process: Context, domain: str, crawl_id: str) -> None:
    """Crawl a site of one page: it is stored and in the record. Nothing is left to do, and the next tick ends it."""
    begin(process, domain, crawl_id)
    key = url(domain)
    page = Page(canonical_key=key, url=key, domain=domain, path="/start")
    process.store.put(content_key(domain, page_id(key)), to_json(page))
    entry = UrlEntry(url=key, page_id=page_id(key), state="indexed", at=1, depth=1)
    complete_one(process.frontier, crawl_id, "page", key, host=Host(domain, 0, 2), line=entry.to_line().decode())
    process.frontier.rebuild(crawl_id, (), ())
    process.recorder.flush(CrawlRef(domain, crawl_id))


def end_crawls(broker: Broker) -> list[dict[str, Any]]:
    """Run the messages `end_crawl` that wait; return the other messages of their queue."""
    messages = [json.loads(each.body) for each in broker.take("site.index")]
    for each in messages:
        if each["type"] == "end_crawl":
            end_crawl(domain=each["domain"], crawl_id=each["crawl_id"])
    return [each for each in messages if each["type"] != "end_crawl"]


def declare(process: Context, domain: str) -> Declared:
    """Declare a site whose next crawl is due."""
    made = Declared.of(domain, {"schedule": "1m"})
    add_site(process.store, made)
    return made


#: Keys of the damaged object of a domain and a crawl, by the kind of the damage, which is in the domain, too.
KEYS: dict[str, Callable[[str, str], str]] = {
    "segment": lambda domain, crawl_id: CrawlRef(domain, crawl_id).segment_key(0),
    "page": lambda domain, _: content_key(domain, page_id(url(domain))),
    "timer": lambda domain, _: f"timers/{domain}.json",
    "crawl": lambda domain, crawl_id: CrawlRef(domain, crawl_id).key,
    "site": lambda domain, _: site_key(domain),
}


def damage_all(process: Context, crawl_id: str) -> dict[str, str]:
    """Crawl a site for each kind of damage and damage its object; return the keys by domain."""
    keys = {f"{kind}.gov": key(f"{kind}.gov", crawl_id) for kind, key in KEYS.items()}
    for domain in keys:
        crawled(process, domain, crawl_id)
        start_timer(domain=domain, timeout=60, callback_queue="TIMER", callback_msg={"type": "reset_timer"})
    for key in keys.values():
        process.store.put(key, b"?")
    return keys


def test_ticks_schedules_and_sweeps_go_on_for_all_sites_and_an_operator_reads_the_key(
    process: Context, broker: Broker
) -> None:
    for kind in KEYS:
        ten_minutes_ago = declare(process, f"{kind}.gov").created - timedelta(minutes=10)
        write_start(process.store, f"{kind}.gov", Start(ten_minutes_ago, "a"))
    declare(process, "c.gov")
    crawled(process, OTHER, "b")
    keys = damage_all(process, "a")
    process.frontier.rebuild("b", (), [FrontierUrl(url(OTHER, "next"), url(OTHER, "next"), 1)])
    tick()
    assert process.redis.exists("perennial:ticked")
    [message] = broker.take("site.page")
    assert json.loads(message.body)["url"] == url(OTHER, "next")
    assert "c.gov" in {each["domain"] for each in end_crawls(broker)}
    assert [each.id for each in process.frontier.active()] == ["b"]

    crawled(process, OTHER, "b2")
    later = damage_all(process, "a2")
    process.redis.flushdb()
    process.run_id.note()
    sweep()
    assert process.frontier.crawl("b2") is not None
    assert process.timers.running(OTHER) is not None
    tick()
    end_crawls(broker)

    for domain, key in later.items():
        found = status(domain, settings=process.settings)
        assert key in found.damaged, domain
        assert f"\n  damaged objects, which count as missing: {found.damaged[0]}" in str(found), domain
    assert status(OTHER, settings=process.settings).damaged == []
    [result] = damaged_objects(CheckContext(process.settings))
    assert result.status == "problem"
    assert any(key in result.text for key in later.values())
    for key in (*keys.values(), *later.values()):
        process.store.delete(key)
    assert [each.status for each in damaged_objects(CheckContext(process.settings))] == ["ok"]


def test_the_status_of_a_site_with_damaged_settings_is_that_of_its_crawl_and_names_them(process: Context) -> None:
    begin(process, DAMAGED, "a")
    key = url(DAMAGED)
    complete_one(process.frontier, "a", "page", key, host=Host(DAMAGED, 3, 2))
    process.store.put(site_key(DAMAGED), b"?")
    found = status(DAMAGED, settings=process.settings)
    assert (found.crawl_id, found.crawl_delay, found.damaged) == ("a", 3, [site_key(DAMAGED)])
    view = site_view(OperatorContext(process.settings, command_operator()), DAMAGED, None)
    assert (view.site, site_key(DAMAGED) in view.fault, view.status.damaged) == (None, True, found.damaged)


def test_a_damaged_manifest_hides_no_other_crawl_that_has_no_pack(process: Context) -> None:
    for domain, crawl_id in ((DAMAGED, "a"), (OTHER, "b")):
        begin(process, domain, crawl_id)
        update_crawl(process.store, CrawlRef(domain, crawl_id), lambda record: replace(record, state="done"))
    process.store.put(manifest_key(DAMAGED), b"?")
    overview = Overview(process.settings, routes=ScriptedSearchClient([]).routes)
    assert overview.packs.read(time.monotonic() + 60).value == [DAMAGED, OTHER]


def test_a_damaged_act_audit_or_note_is_left_out_of_what_operators_read(process: Context) -> None:
    ops = OperatorContext(process.settings, command_operator())
    acts = LongActs(ops)
    process.store.put("acts/20261128T080000.000000-0123abcd.json", b"?")
    assert acts.recent() == []
    for archive in ("art", "other"):
        keep_audit(ops, ArtAudit(archive=archive, command="", operator="", fixes=False))
    process.store.put("art-audits/art.json", b"?")
    audits, trouble = read_audits(ops, ["art", "other"])
    assert list(audits) == ["other"]
    assert trouble.startswith("art-audits/art.json: not an audit of cover art")
    process.store.put(f"{NOTES_PREFIX}letter.json", b"?")
    assert notes_of(ops, "letter") == []
    assert add_note(ops, "letter", "seen") == notes_of(ops, "letter")


def test_an_error_of_one_site_that_is_no_damage_ends_a_sweep_after_the_other_sites(
    process: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    for domain, crawl_id in ((DAMAGED, "a"), (OTHER, "b")):
        crawled(process, domain, crawl_id)
    process.redis.flushdb()
    process.run_id.note()
    get = process.store.get

    def failing(key: str) -> StoredObject:
        if key == KEYS["page"](DAMAGED, "a"):
            raise StoreError(f"{key}: I/O error")
        return get(key)

    with monkeypatch.context() as patch:
        patch.setattr(process.store, "get", failing)
        with pytest.raises(StoreError, match="I/O error"):
            sweep()
    assert process.timers.running(OTHER) is not None
    assert process.frontier.restored() == ["a"]
    sweep()
    assert process.frontier.restored() == []


def test_an_error_of_one_crawl_lets_a_tick_go_on_and_an_outage_of_the_store_ends_it(
    process: Context, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for domain, crawl_id in ((DAMAGED, "a"), (OTHER, "b")):
        crawled(process, domain, crawl_id)
    process.frontier.rebuild("b", (), [FrontierUrl(url(OTHER, "next"), url(OTHER, "next"), 1)])

    def failing(*_: object) -> None:
        raise StoreError("I/O error")

    with monkeypatch.context() as patch:
        patch.setattr("tasks.ticks.publish_end", failing)
        tick()
        assert len(broker.take("site.page")) == 1
        patch.setattr(process.store, "put", failing)
        patch.setattr(process.store, "get", failing)
        with pytest.raises(Postpone, match="the store is unavailable"):
            tick()
    tick()
    end_crawls(broker)
    assert [each.id for each in process.frontier.active()] == ["b"]


@pytest.mark.parametrize("deleted", [False, True])
def test_no_page_counts_as_vanished_if_a_part_of_the_record_is_damaged_or_missing(
    process: Context, site: Site, deleted: bool
) -> None:
    crawl_site(process, site, "c-1")
    packed(process, site, "c-1")
    site.set("/amber", versioned("/cedar", etag='"2"'))  # Nothing leads to /deep any more.
    crawl_site(process, site, "c-2")
    first = CrawlRef(site.domain, "c-2").segment_key(0)
    lines = zstandard.decompress(process.store.get(first).data).splitlines()
    process.store.delete(first)
    for offset, line in enumerate(lines):
        append_segment(process.store, CrawlRef(site.domain, "c-2"), offset, [line])
    if deleted:
        process.store.delete(first)
    else:
        process.store.put(first, b"?")
    assert packed(process, site, "c-2") == 4
    assert isinstance(read_content(process.store, content_key(site.domain, page_id(site.url + "deep"))), Page)


def test_the_notes_of_damaged_objects_are_bounded(process: Context) -> None:
    notes = DamageNotes(process.redis)
    for number in range(MAX_NOTED + 10):
        key = f"content/{DAMAGED}/{number}.json"
        notes.add(ObjectDamaged("?", key, process.store.put(key, b"?")))
    keys = {each.key for each in notes.present(process.store)}
    assert (len(keys), f"content/{DAMAGED}/9.json" in keys) == (MAX_NOTED, False)


def test_damaged_objects_are_compared_one_by_one_and_not_held_in_memory(process: Context) -> None:
    notes, size = DamageNotes(process.redis), 1_000_000
    for number in range(20):
        key = f"content/{DAMAGED}/{number}.json"
        notes.add(ObjectDamaged("?", key, process.store.put(key, os.urandom(size))))
    tracemalloc.start()
    try:
        assert len(notes.present(process.store)) == 20
        assert tracemalloc.get_traced_memory()[1] < 5 * size
    finally:
        tracemalloc.stop()


def test_a_sweep_holds_a_bounded_part_of_the_links_in_memory(process: Context) -> None:
    """300 links of 100 pages take 5.5 MB if all of them are held."""
    crawl, lines = begin(process, DAMAGED, "a"), []
    for number in range(100):
        key = url(DAMAGED, f"page-{number}")
        links = tuple(PageLink(url(DAMAGED, f"page-{(number * 300 + link) % 2_000}")) for link in range(300))
        # Pages with the same text would be counted as a trap.
        page = Page(
            canonical_key=key, url=key, domain=DAMAGED, path=f"/page-{number}", title=in_letters(number), links=links
        )
        process.store.put(content_key(DAMAGED, page_id(key)), to_json(page))
        lines.append(UrlEntry(url=key, page_id=page_id(key), state="indexed", at=1, depth=1).to_line())
    append_segment(process.store, CrawlRef(DAMAGED, crawl.id), 0, lines)
    process.redis.flushdb()
    sweeper = Sweep(process.store, process.frontier, process.timers, process.recorder, timeout=60)
    tracemalloc.start()
    try:
        [action, _] = sweeper.run()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "1901 pages wait" in str(action)
    assert peak < 3_500_000
