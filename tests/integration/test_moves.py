"""A crawl moves with its start page to a new host, and never to a site that others index."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.main import cli
from app.crawl.frontier.values import Crawl
from app.crawl.record.crawls import list_crawls
from app.crawl.record.removed_sites import note_removed
from app.pack.manifest import read_manifest
from app.sites.moves import may_move
from app.sites.site import Site as Declared
from app.sites.status import status
from app.sites.stored import add_site
from app.storage.layout import Page, content_key, content_prefix, manifest_key, read_content, to_json
from app.timers.stored import StoredTimer, store_timer
from app.timers.timers import full_pack_callback
from config.settings import Settings
from tasks import site as tasks
from tasks.base import Context
from tasks.pack import pack_full
from tasks.ticks import tick
from tests.servers.site import Site, by_host, in_letters, page, redirect
from tests.support.broker import Broker
from tests.support.task_context import task_context

pytestmark = pytest.mark.integration


@pytest.fixture
def process(environment: dict[str, str], settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    """Return the context of this process. No timer fires during a test."""
    with task_context({**environment, "TIMER_TIMEOUT": "600"}, settings, monkeypatch) as context:
        assert context.run_id.change()
        context.run_id.note()
        yield context


PAGES = 10
QUEUES = ("site.index", "site.crawl", "site.page")
TASKS: dict[str, Callable[..., None]] = {
    "index+crawl": tasks.index_and_crawl,
    "index": tasks.index,
    "crawl": tasks.crawl,
    "page": tasks.page,
    "end_crawl": tasks.end_crawl,
}


@pytest.fixture
def site() -> Iterator[Site]:
    """Return a site of ten pages. Under its second name, it redirects to a page from which six can be reached."""
    with Site() as site:
        for number in range(PAGES):
            site.set(f"/{number}", page(f"Page {in_letters(number)}", links=[f"/{each}" for each in range(6)]))
        home = page("Home", links=[f"/{number}" for number in range(PAGES)])
        site.set("/", by_host(site.other_domain, redirect(site.at("/0")), home))
        yield site


def crawl(process: Context, broker: Broker, url: str, crawl_id: str, *, to_end: bool = True) -> list[dict[str, Any]]:
    """Crawl a URL in this process; return the messages that began crawls. Without `to_end`, the moved one waits."""
    begun, waiting = [], [{"type": "index+crawl", "url": url, "crawl_id": crawl_id}]
    while waiting:
        for message in waiting:
            if message["type"] == "index+crawl":
                begun.append(message)
            if to_end or not message.get("moved_from"):
                TASKS[message["type"]](**{name: value for name, value in message.items() if name != "type"})
        if not (waiting := [json.loads(each.body) for queue in QUEUES for each in broker.take(queue)]):
            tick()
            waiting = [json.loads(each.body) for queue in QUEUES for each in broker.take(queue)]
    return begun


def kinds(process: Context, domain: str) -> list[str]:
    found = (read_content(process.store, stat.key) for stat in process.store.list(content_prefix(domain)))
    return sorted(type(each).__name__ for each in found)


def moves(process: Context, source: str, target: str) -> bool:
    return may_move(source, target, store=process.store, frontier=process.frontier, timers=process.timers)


def test_a_start_page_that_redirects_to_another_site_leaves_its_crawl_timer_and_pack_as_they_are(
    process: Context, broker: Broker, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    crawl(process, broker, site.url, "own")
    mover, start = site.other_domain, f"http://{site.other_domain}/"
    with caplog.at_level(logging.WARNING):
        assert len(crawl(process, broker, start, "evil-1")) == 1
    timer, latest = process.timers.running(site.domain), process.frontier.latest(site.domain)
    assert timer is not None
    assert timer.callback == full_pack_callback(site.domain, "own")
    assert latest is not None
    assert latest.id == "own"
    assert f"{start} redirects to {site.at('/0')}, a site of its own: the crawl of {mover} ends here" in caplog.text
    assert f"perennial index --crawl {site.at('/0')}" in caplog.text

    pack_full(domain=site.domain, crawl_id="own")
    packed = read_manifest(process.store, site.domain)
    assert packed.pages == PAGES + 1
    assert len(crawl(process, broker, start, "evil-2")) == 1
    assert [each.id for each in list_crawls(process.store, site.domain)] == ["own"]
    assert read_manifest(process.store, site.domain) == packed
    assert kinds(process, site.domain) == ["Page"] * (PAGES + 1)

    assert "moved-to-known-site 1" in CliRunner().invoke(cli, ["status", mover]).stdout
    explained = CliRunner().invoke(cli, ["explain", start]).stdout
    assert "moved-to-known-site" in explained
    assert site.at("/0") in explained
    assert process.timers.running(mover).callback.message["type"] == "pack_incremental"  # type: ignore[union-attr]


def test_a_site_whose_start_page_leads_to_another_host_lacks_no_pack(
    process: Context, broker: Broker, site: Site
) -> None:
    crawl(process, broker, f"http://{site.other_domain}/", "one")
    process.timers.delete(site.other_domain)
    assert not status(site.other_domain, settings=process.settings).pack_due
    assert CliRunner().invoke(cli, ["repair", site.other_domain]).stdout == "nothing was missing\n"


def test_a_crawl_moves_to_an_unknown_host_again_and_again_but_not_while_it_is_crawled_there(
    process: Context, broker: Broker, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    start = f"http://{site.other_domain}/"
    with caplog.at_level(logging.WARNING):
        [_, moved] = crawl(process, broker, start, "one", to_end=False)
    assert f"{start} redirects to {site.at('/0')}: the crawl of {site.other_domain} moves there" in caplog.text
    assert (moved["url"], moved["moved_from"], moved["depth"]) == (site.at("/0"), site.other_domain, 1)
    # The message of the start page is delivered again, after the crawl has begun there.
    tasks.index_and_crawl(**{name: value for name, value in moved.items() if name != "type"})
    assert moved["crawl_id"] == "one-1"
    assert len(crawl(process, broker, start, "two")) == 1
    assert [each.id for each in list_crawls(process.store, site.domain)] == ["one-1"]
    assert kinds(process, site.domain) == ["Page"] * 6

    assert [each["crawl_id"] for each in crawl(process, broker, start, "three")] == ["three", "three-1"]
    assert {each.id: each.moved_from for each in list_crawls(process.store, site.domain)} == {
        "one-1": site.other_domain,
        "three-1": site.other_domain,
    }
    assert process.timers.running(site.domain).callback == full_pack_callback(site.domain, "three-1")  # type: ignore[union-attr]
    # From its first crawl by an operator on, the host is a site of its own.
    crawl(process, broker, site.url, "own")
    assert len(crawl(process, broker, start, "four")) == 1


def test_a_moved_crawl_does_not_begin_if_an_operator_has_begun_one_there_meanwhile(
    process: Context, broker: Broker, site: Site
) -> None:
    [_, moved] = crawl(process, broker, f"http://{site.other_domain}/", "one", to_end=False)
    process.frontier.begin(Crawl("client", site.domain, site.url, datetime.now(UTC)))
    tasks.index_and_crawl(**{name: value for name, value in moved.items() if name != "type"})
    assert not list_crawls(process.store, site.domain)
    assert process.timers.running(site.domain) is None


KNOWN_BY: dict[str, Callable[[Context, str], object]] = {
    "settings": lambda process, domain: add_site(process.store, Declared.of(domain, {})),
    "pack": lambda process, domain: process.store.put(manifest_key(domain), b"{}"),
    "page": lambda process, domain: process.store.put(
        content_key(domain, "1"), to_json(Page(canonical_key="k", url="u", domain=domain, path="/"))
    ),
    "timer": lambda process, domain: process.timers.start(domain, timeout=9, callback=full_pack_callback(domain)),
    "client's timer": lambda process, domain: store_timer(
        process.store, StoredTimer(domain, 9, full_pack_callback(domain))
    ),
    "client's crawl": lambda process, domain: process.frontier.begin(Crawl("c", domain, "u", datetime.now(UTC))),
    "crawl by another site's move": lambda process, domain: process.frontier.begin(
        Crawl("c", domain, "u", datetime.now(UTC), recorded=True, moved_from="c.gov")
    ),
    "removal": lambda process, domain: note_removed(process.store, domain, 1),
}


def test_any_trace_of_a_domain_makes_it_a_site_of_its_own(process: Context) -> None:
    for number, (name, make_known) in enumerate(KNOWN_BY.items()):
        domain = f"{number}.gov"
        assert moves(process, "a.gov", domain), name
        make_known(process, domain)
        assert not moves(process, "a.gov", domain), name
        assert moves(process, "a.gov", f"{domain}.uk"), name


def test_a_host_with_www_is_the_same_site_unless_an_operator_has_decided_about_it(process: Context) -> None:
    for number, (name, make_known) in enumerate(KNOWN_BY.items()):
        domains = (f"{number}.gov:8080", f"www.{number}.gov:8080")
        for domain in domains:
            make_known(process, domain)
        decided = name in ("settings", "client's timer", "removal")
        assert [moves(process, *domains), moves(process, *reversed(domains))] == [not decided] * 2, name
        assert moves(process, domains[0], domains[0]), name
