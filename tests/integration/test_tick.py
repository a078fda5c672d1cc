"""Ticks: due timers fire, on a real Redis and a real broker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from celery.beat import Scheduler
from kombu import Connection

from app.broker.errors import PublishFailed
from app.broker.outgoing import Outgoing
from app.celery import app
from app.crawl.frontier.values import Crawl, FrontierUrl, Host, MessageKind
from app.crawl.record.crawls import latest_crawl
from app.crawl.record.entries import UrlEntry
from app.redis_state.run_id import RUN_ID
from app.storage.folder import FolderStore
from app.storage.layout import page_id
from app.timers.timers import MAX_TICK_PAUSE, TickWatch, full_pack_callback, incremental_pack_callback
from config.celeryconfig import beat_schedule
from config.settings import Settings
from tasks.base import Context
from tasks.site import end_crawl
from tasks.ticks import tick
from tasks.timers import reset_timer, start_timer
from tests.support.broker import Broker
from tests.support.completing import complete_one
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

KINDS: tuple[MessageKind, ...] = ("index", "crawl")


def end_crawls(broker: Broker) -> int:
    """Run the messages `end_crawl` that wait; return their number."""
    messages = [json.loads(each.body) for each in broker.take("site.index")]
    for message in messages:
        assert message.pop("type") == "end_crawl"
        end_crawl(**message)
    return len(messages)


def ticked(broker: Broker) -> dict[str, Any]:
    """Tick until a callback is published, and end crawls meanwhile; return it."""

    def published() -> bool:
        tick()
        end_crawls(broker)
        return broker.depth("site.pack") > 0

    eventually(published, "a callback")
    [message] = broker.take("site.pack")
    payload: dict[str, Any] = json.loads(message.body)
    return payload


def test_of_timers_that_are_due_together_one_whose_publish_fails_holds_no_other_back(
    process: Context, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {f"{number}.gov" for number in range(250)}
    for name in names:
        process.timers.start(name, timeout=0.01, callback=full_pack_callback(name))
    publish, failed = process.publisher.publish_each, set[str]()

    def publish_others(messages: Sequence[Outgoing]) -> dict[int, Exception]:
        failed.add(json.loads(messages[0].body)["domain"])
        return publish(messages[1:]) or {0: PublishFailed("refused")}

    def fired() -> bool:
        with suppress(PublishFailed):
            tick()
        return process.timers.count() == len(failed)

    with monkeypatch.context() as patch:
        patch.setattr(process.publisher, "publish_each", publish_others)
        eventually(fired, "all others have fired")
    assert {json.loads(each.body)["domain"] for each in broker.take("site.pack")} == names - failed
    for name in failed:
        process.timers.make_due(name)
    tick()
    assert {json.loads(each.body)["domain"] for each in broker.take("site.pack")} == failed
    assert process.timers.count() == 0


def test_a_timer_that_is_reset_while_its_claim_fires_fires_again_later(
    process: Context, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.timers.start("a.gov", timeout=30, callback=full_pack_callback("a.gov"))
    process.timers.make_due("a.gov")
    publish = process.publisher.publish_each

    def reset_and_publish(messages: Sequence[Outgoing]) -> dict[int, Exception]:
        process.timers.reset("a.gov", timeout=30, callback=full_pack_callback("a.gov"))
        return publish(messages)

    with monkeypatch.context() as patch:
        patch.setattr(process.publisher, "publish_each", reset_and_publish)
        ticked(broker)
    timer = process.timers.running("a.gov")
    assert timer is not None
    process.timers.make_due("a.gov")
    ticked(broker)
    assert process.timers.running("a.gov") is None


def test_a_timer_is_rearmed_while_messages_of_its_domain_are_open_and_then_fires(
    process: Context, broker: Broker
) -> None:
    process.frontier.begin(Crawl("c", "a.gov", "https://a.gov/", datetime.now(UTC)))
    process.frontier.note_published("c", [FrontierUrl("https://a.gov/k", "k", 0)])
    process.timers.start("a.gov", timeout=0.05, callback=full_pack_callback("a.gov", "c"))

    def rearmed() -> bool:
        before = process.timers.running("a.gov")
        tick()
        after = process.timers.running("a.gov")
        return bool(before and after and before.remaining < 0 < after.remaining)

    eventually(rearmed, "the timer is armed again")
    assert broker.depth("site.pack") == 0
    for kind in KINDS:
        complete_one(process.frontier, "c", kind, "k", host=Host("a.gov", 0, 1))
    broker.take("site.index")  # On a busy machine the crawl has stalled, and a tick published its open page again.
    assert ticked(broker)["type"] == "pack_full"


def test_messages_that_vanished_are_published_again_and_after_three_times_the_crawl_ends_without_them(
    process: Context, broker: Broker
) -> None:
    start = Crawl("c", "a.gov", "https://a.gov/", datetime.now(UTC), recorded=True)
    process.recorder.begin(start, timer_timeout=1, callback={})
    process.frontier.note_published("c", [FrontierUrl("https://a.gov/k", "https://a.gov/k", 0)])
    process.timers.start("a.gov", timeout=0.05, callback=full_pack_callback("a.gov", "c"))
    for _ in range(3):

        def published_again() -> bool:
            tick()
            return broker.depth("site.index") + broker.depth("site.crawl") == 2

        eventually(published_again, "the messages are published again")
        tick()  # While messages wait in a queue, none counts as lost.
        assert broker.depth("site.index") == 1
        broker.take("site.index")
        broker.take("site.crawl")
    assert ticked(broker)["type"] == "pack_full"
    recorded = process.recorder.snapshot("a.gov", "c")
    assert recorded is not None
    assert ([entry.state for entry in recorded.entries.values()], recorded.cut) == (["lost"], True)


def test_messages_are_not_published_again_before_the_next_attempt_of_one_that_failed(
    process: Context, broker: Broker
) -> None:
    url = "https://a.gov/k"
    start = Crawl("c", "a.gov", url, datetime.now(UTC), recorded=True)
    process.recorder.begin(start, timer_timeout=1, callback={})
    process.frontier.note_published("c", [FrontierUrl(url, url, 0)])
    process.redis.hset("perennial:crawl:c", "last", 0)
    process.frontier.release("c", "index", url, "a.gov", failed=True, error="ServerError: 500")
    tick()
    assert broker.depths(("site.index", "site.crawl")) == [0, 0]
    [name] = process.redis.hkeys("perennial:crawl:c:failures")
    process.redis.hset("perennial:crawl:c:failures", name, "9 0 ServerError: 500")
    tick()
    assert broker.depths(("site.index", "site.crawl")) == [1, 1]


def test_a_tick_publishes_the_end_of_a_crawl_once_and_reads_nothing_of_its_record(
    process: Context, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def complete(number: int) -> None:
        url = f"https://a.gov/{number}"
        line = UrlEntry(url=url, page_id=page_id(url), state="gone", at=1.0).to_line().decode()
        complete_one(process.frontier, "c", "page", url, host=Host("a.gov", 0, 1), line=line)

    start = Crawl("c", "a.gov", "https://a.gov/", datetime.now(UTC), recorded=True)
    process.recorder.begin(start, timer_timeout=30, callback={})
    process.timers.start("a.gov", timeout=30, callback=full_pack_callback("a.gov", "c"))
    complete(1)
    with monkeypatch.context() as patch:
        read: list[str] = []
        patch.setattr(FolderStore, "get", lambda _, key: read.append(key))
        for _ in range(3):
            tick()
        assert not [key for key in read if key.startswith("crawls/")]
    assert broker.depth("site.index") == 1
    assert broker.take("site.index")
    assert process.frontier.is_active("a.gov")
    # The message is lost: the note of its publication expires.
    process.redis.delete("perennial:crawl:c:ending")
    tick()
    before = process.timers.running("a.gov")
    assert end_crawls(broker) == 1
    after = process.timers.running("a.gov")
    assert before is not None
    assert after is not None
    assert after.remaining > before.remaining
    record = latest_crawl(process.store, "a.gov")
    assert record is not None
    assert (record.state, record.reasons, process.frontier.is_active("a.gov")) == ("done", {"gone": 1}, False)
    complete(2)  # A page of a dead letter, after the end: the record is completed again.
    tick()
    assert end_crawls(broker) == 1
    record = latest_crawl(process.store, "a.gov")
    assert record is not None
    assert record.reasons == {"gone": 2}


def test_an_end_that_finds_a_page_open_again_is_published_again_when_that_page_is_dead(
    process: Context, broker: Broker
) -> None:
    start = Crawl("c", "a.gov", "https://a.gov/", datetime.now(UTC), recorded=True)
    process.recorder.begin(start, timer_timeout=30, callback={})
    complete_one(process.frontier, "c", "page", "k", host=Host("a.gov", 0, 1))
    tick()
    [early] = broker.take("site.index")
    # As after a start of Redis, whose tick read the page as open just before it was dead.
    host, link = Host("a.gov", 0, 1), FrontierUrl("https://a.gov/again", "again", 1)
    process.frontier.enter("c", "a.gov", [link], host, message_id="m")
    message = json.loads(early.body)
    end_crawl(domain=message["domain"], crawl_id=message["crawl_id"])
    tick()
    assert broker.depth("site.index") == 0
    complete_one(process.frontier, "c", "page", "again", host=host, dead=True)
    tick()
    assert end_crawls(broker) == 1
    assert not process.frontier.is_active("a.gov")


def test_a_crawl_whose_end_is_dead_lettered_holds_its_timer_back_no_longer(process: Context) -> None:
    process.recorder.begin(
        Crawl("c", "a.gov", "https://a.gov/", datetime.now(UTC), recorded=True), timer_timeout=30, callback={}
    )
    complete_one(process.frontier, "c", "page", "k", host=Host("a.gov", 0, 1))
    assert process.frontier.is_active("a.gov")
    end_crawl.on_dead_letter((), {"domain": "a.gov", "crawl_id": "c"})
    assert not process.frontier.is_active("a.gov")


def test_a_lost_redis_is_noticed_once_and_everything_is_compared_with_the_store(
    process: Context, broker: Broker
) -> None:
    tick()
    assert broker.depth("site.pack") == 0
    process.redis.flushdb()
    # What is written after a loss of all keys is complete: its pages are not published twice.
    process.frontier.begin(Crawl("c", "a.gov", "https://a.gov/", datetime.now(UTC), recorded=True))
    process.frontier.note_published("c", [FrontierUrl("https://a.gov/", "https://a.gov/", 0)])
    # A tick at the same time, which has not noted yet that it compares.
    assert process.run_id.change() == "emptied"
    tick()
    tick()
    [message] = broker.take("site.pack")
    assert json.loads(message.body) == {"type": "sweep"}
    assert broker.depth("site.index") == 0
    process.redis.set(RUN_ID, "of another server")
    process.redis.delete(f"{RUN_ID}:compared")
    tick()
    assert broker.depth("site.index") == 1


def test_a_tick_of_beat_names_no_time_by_which_a_worker_with_another_clock_would_discard_it(
    process: Context, broker: Broker, settings: Settings
) -> None:
    scheduler = Scheduler(app, lazy=True)
    with Connection(settings.broker) as connection:
        producer = app.amqp.Producer(connection.channel(), auto_declare=False)
        for name, entry in beat_schedule.items():
            scheduler.apply_async(scheduler.Entry(**entry, name=name, app=app), producer=producer, advance=False)
    [message] = broker.take("site.tick")
    assert (message.headers["task"], message.headers["expires"]) == ("site.tick", None)
    assert "expiration" not in message.properties


def test_ticks_are_overdue_when_none_ran_for_a_minute_of_the_process(process: Context, redis_url: str) -> None:
    watch = TickWatch(process.redis)
    tick()
    assert not watch.is_overdue()
    watch._seen -= 2 * MAX_TICK_PAUSE
    assert not watch.is_overdue()
    process.redis.delete("perennial:ticked")
    assert not watch.is_overdue()
    watch._seen -= 2 * MAX_TICK_PAUSE
    assert watch.is_overdue()
    tick()
    assert not watch.is_overdue()


def test_start_timer_and_reset_timer_accept_the_names_of_the_reference_document(process: Context) -> None:
    start_timer(domain="A.gov", timeout=60, callback_queue="PACK", callback_msg="full_pack_callback")
    reset_timer(domain="a.gov", callback_msg={"type": "pack_incremental"})
    timer = process.timers.running("a.gov")
    assert timer is not None
    assert timer.callback == full_pack_callback("a.gov")
    reset_timer(domain="b.gov")
    other = process.timers.running("b.gov")
    assert other is not None
    assert other.callback == incremental_pack_callback("b.gov")
