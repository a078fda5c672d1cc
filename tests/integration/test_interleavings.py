"""Messages of one domain that come across each other: the pack is right in the end, and comes."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime

import pytest

from app.broker.errors import InvalidMessage
from app.crawl.frontier import Crawl
from app.errors import RobotsUnavailable
from app.pack.manifest import read_manifest
from app.storage.layout import Page, content_key, page_id, to_json
from app.timers.timers import full_pack
from tasks.base import Context
from tasks.pack import pack_full, pack_incremental
from tasks.site import crawl, index, index_and_crawl
from tasks.timers import start_timer, tick
from tests.integration.test_tick import broker, here, ticked
from tests.servers.site import Request, Site, Wire, failure, page, redirect
from tests.support.broker import Broker
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

__all__ = ["broker", "here"]

DOMAIN = "a.gov"


def begin(here: Context, crawl_id: str, domain: str = DOMAIN) -> None:
    here.frontier.begin(Crawl(crawl_id, domain, f"http://{domain}/", datetime.now(UTC)))


def indexed(here: Context, crawl_id: str, path: str, domain: str = DOMAIN, body: str = "") -> None:
    """Store a page and note it as indexed in a crawl."""
    url = f"http://{domain}{path}"
    content = Page(canonical_key=url, url=url, domain=domain, path=path, title=path, body=body)
    here.store.put(content_key(domain, page_id(url)), to_json(content))
    here.frontier.complete(crawl_id, domain, "index", url, page_id=page_id(url))


def test_a_callback_that_no_utf8_can_hold_is_posted_and_holds_up_no_other_timer(here: Context, broker: Broker) -> None:
    start_timer(domain="a.gov", timeout=0.01, callback_msg={"type": "pack_full", "note": "\ud800"})
    here.timers.start("b.gov", timeout=0.01, callback=full_pack("b.gov", "c"))

    def both() -> bool:
        tick()
        return broker.depth("site.pack") == 2

    eventually(both, "both callbacks")
    assert {json.loads(message.body)["domain"] for message in broker.take("site.pack")} == {"a.gov", "b.gov"}


def test_lost_work_of_an_earlier_crawl_neither_spoils_nor_delays_the_packs_of_later_ones(
    here: Context, broker: Broker
) -> None:
    begin(here, "old")
    here.frontier.note_published("old", ["lost"])
    begin(here, "new")
    here.timers.start(DOMAIN, timeout=0.05, callback=full_pack(DOMAIN, "new"))
    assert ticked(broker) == {"type": "pack_full", "domain": DOMAIN, "crawl_id": "new"}
    assert here.frontier.open_messages(DOMAIN) == 0


def test_a_full_pack_that_is_tried_again_does_not_replace_that_of_a_later_crawl(here: Context) -> None:
    begin(here, "old")
    for path in ("/a", "/b", "/c"):
        indexed(here, "old", path)
    begin(here, "new")
    for path in ("/b", "/c", "/d"):
        indexed(here, "new", path, body="rewritten")
    pack_full(domain=DOMAIN, crawl_id="new")
    pack_full(domain=DOMAIN, crawl_id="old")
    packed = read_manifest(here.store, DOMAIN)
    assert (packed.crawl_id, packed.generation, packed.pages) == ("new", 1, 3)


def test_a_page_that_was_fetched_while_its_domains_timer_ran_out_starts_another(here: Context, broker: Broker) -> None:
    released = threading.Event()

    def slow(request: Request, wire: Wire) -> None:
        released.wait(20)
        page("Slow", "text")(request, wire)

    with Site({"/slow": slow}) as site:
        thread = threading.Thread(target=index, kwargs={"url": site.at("/slow")})
        thread.start()
        eventually(lambda: "/slow" in site.paths(), "it is being fetched")
        ticked(broker)
        eventually(lambda: tick() is None and here.timers.running(site.domain) is None, "the timer is forgotten")
        released.set()
        thread.join()
        assert here.timers.running(site.domain) is not None


def test_a_page_indexed_on_its_own_during_a_crawl_is_in_the_crawls_pack(here: Context) -> None:
    with Site({"/orphan": page("Orphan", "text")}) as site:
        begin(here, "c", site.domain)
        here.timers.start(site.domain, timeout=60, callback=full_pack(site.domain, "c"))
        indexed(here, "c", "/", site.domain)
        index(url=site.at("/orphan"))
        pack_full(domain=site.domain, crawl_id="c")
        assert read_manifest(here.store, site.domain).pages == 2


def test_two_start_pages_that_send_their_visitors_to_each_other_do_not_keep_the_crawl_going_for_ever(
    here: Context, broker: Broker
) -> None:
    with Site({}) as one, Site({"/": redirect(one.at("/"))}) as other:
        one.set("/", redirect(other.at("/")))
        index_and_crawl(url=one.at("/"), crawl_id="0")
        for turn in range(1, 40):
            messages = broker.take("site.crawl") + broker.take("site.index")
            if not messages:
                break
            for payload in (json.loads(message.body) for message in messages):
                kind = payload.pop("type")
                if kind == "index+crawl":
                    index_and_crawl(**payload, crawl_id=str(turn))
                else:
                    {"index": index, "crawl": crawl}[kind](**payload)
        assert messages == []
        assert here.frontier.open_messages(one.domain) == 0


def test_a_host_whose_robots_txt_fails_is_not_asked_for_it_once_for_every_page(here: Context) -> None:
    with Site({"/robots.txt": failure(503)}) as site:
        for number in range(20):
            with pytest.raises(RobotsUnavailable, match="503"):
                index(url=site.at(f"/{number}"))
        assert 1 <= len(site.paths()) <= 3


def test_a_crawl_that_goes_on_is_not_forgotten_and_one_that_was_is_taken_off_its_domains_list(here: Context) -> None:
    begin(here, "forgotten")
    begin(here, "long")
    here.redis.delete("perennial:crawl:forgotten")
    for key in ("perennial:crawl:long", f"perennial:domain:{DOMAIN}:crawls"):
        here.redis.expire(key, 5)
    indexed(here, "long", "/")
    begin(here, "new")
    assert here.redis.smembers(f"perennial:domain:{DOMAIN}:crawls") == {"long", "new"}
    assert int(here.redis.ttl("perennial:crawl:long")) > 5


@pytest.mark.parametrize("flags", [{"force": "false"}, {"deletions": 0}])
def test_a_flag_of_a_pack_is_true_or_false_and_nothing_that_looks_like_it(
    here: Context, flags: dict[str, object]
) -> None:
    indexed(here, "c", "/")
    pack = pack_full if "force" in flags else pack_incremental
    with pytest.raises(InvalidMessage, match="expected true or false"):
        pack(domain=DOMAIN, **flags)


@pytest.mark.parametrize("crawl_id", ["c:open", "c:seen", "\n", "é" * 5_000, "urn:uuid:1"])
def test_an_odd_crawl_id_touches_no_other_crawl(here: Context, crawl_id: str) -> None:
    begin(here, crawl_id)
    begin(here, "c")
    here.frontier.note_published("c", ["k"])
    here.frontier.note_published(crawl_id, ["k", "l"])
    assert (here.frontier.open_messages_of("c"), here.frontier.open_messages_of(crawl_id)) == (2, 4)
