"""Dead sets on a real broker: reading changes nothing, and a letter is safe elsewhere before it leaves."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from functools import partial
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from amqp.channel import Channel
from celery import Celery
from click.testing import CliRunner
from kombu import Connection

from app.broker.dead_command import dead as dead_command
from app.broker.dead_letters import acts, reading, shards
from app.broker.dead_letters.audit import Audit
from app.broker.dead_letters.exports import read_export
from app.broker.dead_letters.letters import DeadLetter, LetterFilter
from app.broker.dead_letters.replay import IN_DOUBT, ReplayChanges, ReplayOptions, ReturnedCopies
from app.broker.dead_letters.sets import DeadSets
from app.broker.errors import ApplicationError, BrokerUnreachable, DeadSetBusy, InvalidMessage
from app.broker.headers import REPLAY, REPLAY_HISTORY
from app.broker.outcomes import outcomes_exchange
from app.broker.outgoing import Outgoing
from app.broker.policies.delay_queues import DelayQueues
from app.broker.publishing import Publisher
from app.broker.worker.install import install
from config.settings import ROOT
from tests.support.broker import Broker
from tests.support.dead import (
    DEAD_OF,
    OF_QUEUE,
    POLICIES,
    dead_letter,
    dead_sets,
    failed_delivery,
    failure,
    journal_in,
    small_shards,
)
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("vhost_of_dead_sets")]


@pytest.fixture
def dead(broker: Broker, broker_url: str, publisher: Publisher, tmp_path: Path) -> DeadSets:
    return dead_sets(broker_url, publisher, tmp_path / "audit.jsonl")


def audited(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]


def bodies(messages: list[Any]) -> list[str]:
    return [bytes(message.body).decode() if not isinstance(message.body, str) else message.body for message in messages]


# Reading


def test_a_letter_that_was_removed_is_gone_also_if_the_reading_then_ends_by_an_error(
    broker: Broker, broker_url: str, publisher: Publisher
) -> None:
    # A canary that dies again ends the reading: its original has been removed just before.
    letters = 400
    dead_letter(publisher, [failed_delivery(number) for number in range(letters)])
    for removed in range(1, 6):
        with reading.leased(broker_url, "post.dead") as lease:
            with suppress(acts.ActStopped), lease.reading() as reader:
                _, delivery_tag = next(iter(reader))
                reader.remove(delivery_tag)
                raise acts.ActStopped
            assert lease.depth() == letters - removed


def test_a_letter_that_arrives_during_a_read_stays_behind_the_others(
    dead: DeadSets, broker: Broker, publisher: Publisher
) -> None:
    ids = dead_letter(publisher, [failed_delivery(number) for number in range(10)])
    with closing(dead.iter_letters()) as letters:
        seen = [next(letters).id]
        later = dead_letter(publisher, [failed_delivery("new")])
        seen += [letter.id for letter in letters]
    assert seen == ids
    assert [letter.id for letter in dead.letters()] == [*ids, *later]


def test_a_long_read_or_a_foreign_consumer_makes_the_dead_set_busy(
    dead: DeadSets, broker_url: str, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_letter(publisher, [failed_delivery(1)])
    monkeypatch.setattr(reading, "LEASE_TIMEOUT", 0.3)
    busy = pytest.raises(DeadSetBusy, match=r"another process works on the dead set post\.dead")
    with reading.leased(broker_url, "post.dead"), busy:
        dead.letters()
    with Connection(broker_url) as connection:
        connection.channel().basic_consume("post.dead", callback=print)
        with busy:
            dead.letters()
    eventually(lambda: Broker(broker_url).consumers("post.dead") == 0, "the foreign consumer is gone")
    monkeypatch.setattr(reading, "LEASE_TIMEOUT", 60.0)
    assert len(dead.letters()) == 1


def test_a_dead_set_that_was_never_declared_is_empty_and_an_unreachable_broker_an_error(
    broker_url: str, publisher: Publisher
) -> None:
    policy = DelayQueues("nowhere")
    assert DeadSets(policy, broker_url, publisher).letters() == []
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1"):
        DeadSets(policy, "amqp://guest:secret@127.0.0.1:1//", publisher).letters()


@pytest.mark.parametrize(
    ("total", "of_shard"), [(600, 200), pytest.param(100_000, shards.SHARD_LETTERS, marks=pytest.mark.long)]
)
def test_a_large_dead_set_is_streamed_in_bounded_parts_while_new_letters_arrive(
    dead: DeadSets,
    broker: Broker,
    broker_url: str,
    publisher: Publisher,
    total: int,
    of_shard: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, number in (("SHARD_LETTERS", of_shard), ("MOVE_ABOVE", of_shard), ("_BATCH", of_shard // 4)):
        monkeypatch.setattr(shards, name, number)
    send(publisher, total)
    windows = consumed_windows(monkeypatch)
    stop = threading.Event()
    producer = threading.Thread(target=keep_sending, args=(broker_url, stop, total))
    producer.start()
    memory = psutil.Process().memory_info
    before, most, seen, in_order = memory().rss, 0, 0, True
    try:
        for letter in dead.iter_letters():
            # The broker keeps in memory what is unacknowledged.
            assert 0 < max(windows) <= reading.MAX_READ
            in_order &= letter.delivery.body == b"%d" % seen
            seen += 1
            most = max(most, memory().rss) if seen % 1_000 == 0 else most
    finally:
        stop.set()
        producer.join()
    assert seen >= total
    assert in_order
    # All letters at once would need hundreds of MB.
    assert most - before < 50_000_000
    with closing(dead.iter_letters()) as again:
        assert [next(again).delivery.body for _ in range(3)] == [b"0", b"1", b"2"]
    assert dead.depth() >= seen
    assert broker.depth("post.dead") <= shards.MOVE_ABOVE
    most_listed = min(5_000, total - of_shard // 2)
    with closing(dead.iter_letters()) as letters:
        oldest = [letter.id for letter in islice(letters, most_listed)]
    assert [letter.id for letter in dead.summaries(limit=most_listed)] == oldest


def consumed_windows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets, for each consumer from now on, how many messages it may have unacknowledged."""
    windows, limits = list[int](), dict[int, int]()
    limit, consume = Channel.basic_qos, Channel.basic_consume

    def noted_limit(channel: Channel, size: int, count: int, *args: Any) -> Any:
        limits[id(channel)] = count
        return limit(channel, size, count, *args)

    def noted_consume(channel: Channel, *args: Any, **kwargs: Any) -> Any:
        windows.append(limits.get(id(channel), 0) or 2**32)
        return consume(channel, *args, **kwargs)

    monkeypatch.setattr(Channel, "basic_qos", noted_limit)
    monkeypatch.setattr(Channel, "basic_consume", noted_consume)
    return windows


def send(publisher: Publisher, count: int) -> None:
    """Publish small dead letters with the headers of a worker."""
    headers = {"perennial-reason": "exception", "perennial-queue": "mail", "perennial-exception": "KeyError"}
    for first in range(0, count, 2_000):
        publisher.publish(
            [
                Outgoing(exchange="post.dead", routing_key="mail", body=b"%d" % number, headers=headers)
                for number in range(first, min(first + 2_000, count))
            ]
        )


def keep_sending(broker_url: str, stop: threading.Event, number: int) -> None:
    """Publish numbered letters, from `number` on, until the event is set."""
    publisher = Publisher(broker_url, timeout=60)
    while not stop.wait(0.01):
        publisher.publish([Outgoing(exchange="post.dead", routing_key="mail", body=b"%d" % number)])
        number += 1
    publisher.close()


# Causes, ids and filters


def test_letters_of_every_policy_are_read_and_replayed_to_their_queues(
    dead: DeadSets, broker: Broker, broker_url: str, publisher: Publisher
) -> None:
    for queue in OF_QUEUE:
        dead_letter(publisher, [failed_delivery({"n": 1}, queue)], failure())
    letters = {letter.set: letter for letter in dead.letters()}
    assert {name: letter.queue for name, letter in letters.items()} == {dead: queue for queue, dead in DEAD_OF.items()}
    assert {letter.cause.location for letter in letters.values()} == {"shop/till.py:7 in sell"}
    assert {letter.cause.attempts for letter in letters.values()} == {1}
    result = dead.replay(options=ReplayOptions(changes=ReplayChanges(content_type="text/x-number")))
    assert len(result.done) == 3
    assert result.complete
    for queue, key in (("mail", "mail"), ("art.index", "index"), ("orders", "orders")):
        [message] = broker.take(queue)
        assert message.headers[REPLAY_HISTORY] == [letters[DEAD_OF[queue]].id]
        assert message.headers[REPLAY] == OF_QUEUE[queue].replay_budget
        assert message.delivery_info["routing_key"] == key
        assert message.properties["correlation_id"] == "c-1"
        assert (message.content_type, bodies([message])) == ("text/x-number", ['{"n": 1}'])
        assert not [name for name in message.headers if name.startswith(("x-", "perennial-dead", "perennial-reason"))]
    assert dead.letters() == []


def test_letters_of_the_broker_and_of_foreign_programs_are_read_and_replayed(
    dead: DeadSets, broker: Broker, publisher: Publisher
) -> None:
    # A Perl indexer's failure, a Sneakers worker's, the broker's own, and one that a client published to the dead set.
    perl = {"mb-retries": -1, "mb-exceptions": ["503", "timed out"]}
    info = json.dumps({"error": "reject", "num_attempts": 6, "error_class": "Net::ReadTimeout", "error_message": "x"})
    broker.post(b"a gid", exchange="art.failed", key="index", headers=perl)
    broker.post(b"<order/>", exchange="orders.error", key="order.new", headers={"retry_info": info})
    broker.post(b"[1]", exchange="", key="mail", expiration="1")
    broker.post(b"by hand", exchange="post.dead", key="mail")
    eventually(lambda: broker.depth("post.dead") == 2, "the broker has dead-lettered it")
    causes = {(letter.set, letter.reason, letter.queue, letter.error) for letter in dead.letters()}
    assert causes == {
        ("art.failed", "exception", "", "timed out"),
        ("orders.error", "reject", "", "Net::ReadTimeout: x"),
        ("post.dead", "expired", "mail", ""),
        ("post.dead", "by-hand", "", ""),
    }
    assert len(dead.replay().done) == 4
    assert bodies(broker.take("art.index")) == ["a gid"]
    assert bodies(broker.take("orders")) == ["<order/>"]
    assert sorted(bodies(broker.take("mail"))) == ["[1]", "by hand"]


def test_an_id_of_no_letter_or_of_several_is_an_error_that_lists_them(
    dead: DeadSets, broker: Broker, publisher: Publisher
) -> None:
    ids = dead_letter(publisher, [failed_delivery(number) for number in range(40)])
    [(digit, count)] = Counter(ident[0] for ident in ids).most_common(1)
    with pytest.raises(InvalidMessage, match="'xyz' matches none of the dead letters"):
        dead.find(["xyz"])
    with pytest.raises(InvalidMessage, match=f"'{digit}' matches {count} of the dead letters: .*, .*"):
        dead.find([digit])
    with pytest.raises(InvalidMessage, match="'' matches none"):
        dead.find([""])
    with pytest.raises(InvalidMessage, match="no dead set 'x': there are"):
        dead.only("x")
    # A complete id is that of its letter, even if others begin with it.
    for ident in ("abcdefgh", "abcdefgh-and-more"):
        broker.post(b"", exchange="post.dead", key="mail", headers={"perennial-dead-id": ident})
    assert [letter.id for letter in dead.find(["abcdefgh"])] == ["abcdefgh"]


# Replaying


def test_chosen_letters_leave_and_the_others_keep_their_order(
    dead: DeadSets, broker: Broker, publisher: Publisher, tmp_path: Path
) -> None:
    ids = dead_letter(publisher, [failed_delivery(number) for number in range(100)])
    chosen = set(ids[3:100:7])
    result = dead.replay(lambda letter: letter.id in chosen)
    assert result.done == ids[3:100:7]
    assert [letter.id for letter in dead.letters()] == [each for each in ids if each not in result.done]
    assert bodies(broker.take("mail")) == [str(number) for number in range(3, 100, 7)]
    lines = audited(tmp_path)
    assert [line["id"] for line in lines] == result.done
    assert {(line["act"], line["set"], line["queue"], line["budget"], line["outcome"]) for line in lines} == {
        ("replay", "post.dead", "mail", "keep", "replayed")
    }
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_long_replay_is_done_in_passes_that_requeue_the_rest(
    dead: DeadSets, broker: Broker, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acts, "PASS_SECONDS", 0.05)
    for _ in range(4):
        broker.post(b"twin", exchange="post.dead", key="mail")
    dead_letter(publisher, [failed_delivery(number) for number in range(20)])
    there = [letter.id for letter in dead.letters()]
    began = time.monotonic()
    result = dead.replay(options=ReplayOptions(rate=40.0))
    assert time.monotonic() - began >= (len(there) - 1) / 40
    assert result.done == there
    assert result.complete
    assert broker.depth("mail") == 24
    assert dead.letters() == []


def test_a_letter_that_the_broker_returns_stays(dead: DeadSets, broker_url: str, publisher: Publisher) -> None:
    dead_letter(publisher, [failed_delivery(5, "orders")])
    with Connection(broker_url) as connection:
        connection.channel().queue_delete("orders")
    result = dead.replay()
    assert "no queue is bound for exchange 'orders.retry-requeue' with key 'orders'" in str(result.stayed)
    assert len(dead.letters()) == 1


def test_a_copy_that_came_back_is_removed_also_if_the_audit_then_fails(
    broker: Broker, broker_url: str, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ApplicationError("the disk is full")

    with Connection(broker_url) as connection, connection.channel() as channel:
        arguments = {"alternate-exchange": "post.dead"}
        channel.exchange_declare("office", "direct", durable=True, auto_delete=False, arguments=arguments)
    broker.post(b"x", exchange="office", key="mial")
    office = DeadSets(DelayQueues("post", exchange="office"), broker_url, publisher)
    monkeypatch.setattr(Audit, "write", fail)
    assert office.replay().stopped == "the disk is full"
    assert len(office.letters()) == 1


def test_a_replay_that_stops_has_removed_what_the_broker_took(
    dead: DeadSets, broker: Broker, broker_url: str, publisher: Publisher
) -> None:
    room = {"x-max-length": 5, "x-overflow": "reject-publish"}
    with Connection(broker_url) as connection, connection.channel() as channel:
        channel.queue_delete("mail")
        channel.queue_declare("mail", durable=True, auto_delete=False, arguments=room)
    ids = dead_letter(publisher, [failed_delivery(number) for number in range(20)])
    result = dead.replay()
    assert "the broker accepts no message" in result.stopped
    assert result.done == ids[:5]
    assert bodies(broker.take("mail")) == [str(number) for number in range(5)]
    assert [letter.id for letter in dead.letters()] == ids[5:]


# Canaries


@pytest.mark.parametrize(
    ("outcomes", "left", "stopped"),
    [
        (["succeeded"] * 30, 0, ""),
        (["dead-lettered"], 29, "died again: KeyError: boom"),
        ([], 29, "no outcome within 0.5 s"),
    ],
)
def test_a_canary_is_replayed_first_and_the_others_follow_if_it_succeeds(
    dead: DeadSets, publisher: Publisher, broker_url: str, outcomes: list[str], left: int, stopped: str
) -> None:
    dead_letter(publisher, [failed_delivery(number) for number in range(30)])
    with reporting_worker(broker_url, outcomes) as seen:
        result = dead.replay(options=ReplayOptions(canary=0.5 if not outcomes else 30.0))
    assert len(dead.letters()) == left
    assert stopped in result.stopped
    assert result.complete == (not stopped)
    assert len(seen) >= len(outcomes)


def test_the_first_failure_stops_a_replay_with_few_letters_in_flight(
    dead: DeadSets, publisher: Publisher, broker_url: str
) -> None:
    ids = dead_letter(publisher, [failed_delivery(number) for number in range(60)])
    with reporting_worker(broker_url, [*["succeeded"] * 20, "retried", *["succeeded"] * 40]):
        result = dead.replay(options=ReplayOptions(canary=30.0))
    assert ids[20] in result.stopped
    assert 21 <= len(result.done) <= 31
    assert len(dead.letters()) == 60 - len(result.done)


@contextmanager
def reporting_worker(broker_url: str, outcomes: list[str]) -> Iterator[list[str]]:
    """Consume `mail` in a thread and report these outcomes, one for each message; yield the ids of the letters."""
    remaining, stop, letter_ids = iter(outcomes), threading.Event(), list[str]()

    def run() -> None:
        publisher = Publisher(broker_url)
        with closing(publisher), Connection(broker_url) as connection, connection.channel() as channel:
            while not stop.wait(0.005):
                message = channel.basic_get("mail", no_ack=True)
                if message is None or (outcome := next(remaining, None)) is None:
                    continue
                headers = channel.message_to_python(message).headers
                letter_ids.append(headers[REPLAY_HISTORY][0])
                report = json.dumps({"outcome": outcome, "text": "KeyError: boom", "of": letter_ids[-1]}).encode()
                to = headers["perennial-outcome-to"]
                publisher.publish(
                    [Outgoing(exchange=outcomes_exchange.name, routing_key=to, body=report, mandatory=False)]
                )

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield letter_ids
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(("lost", "arrived"), [(1, 1), (2, 10)])
def test_a_letter_whose_confirm_was_lost_with_its_connection_is_not_sent_again(
    broker: Broker,
    broker_url: str,
    publisher: Publisher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lost: int,
    arrived: int,
) -> None:
    ids = dead_letter(publisher, [failed_delivery(number) for number in range(10)])
    dead = dead_sets(broker_url, publisher, journal=journal_in(tmp_path / "sent")).only("post.dead")
    awaited, waits = Publisher._await_answers, count(1)

    def await_or_lose(self: Publisher, *arguments: Any) -> None:
        """Lose the connection once, when the broker has the messages and before it has confirmed them here."""
        if next(waits) == lost:
            eventually(lambda: broker.depth("mail") == arrived, "the messages are in their queue")
            assert self._connection is not None
            self._connection.connection.transport.close()
            raise ConnectionResetError
        awaited(self, *arguments)

    monkeypatch.setattr(Publisher, "_await_answers", await_or_lose)
    results = [dead.replay(), dead.replay()]
    sent = [message.headers[REPLAY_HISTORY][0] for message in broker.peek("mail")]
    assert sorted(sent) == sorted(ids)
    in_doubt = list(results[1].stayed)
    # The last one: confirms of others are read while messages are written.
    assert in_doubt[-1] == ids[arrived - 1]
    assert set(results[1].stayed.values()) == {IN_DOUBT}
    assert [letter.id for letter in dead.summaries()] == in_doubt
    assert dead.replay(options=ReplayOptions(again=True)).done == in_doubt


def test_a_letter_that_was_sent_before_the_look_for_its_copy_failed_is_not_sent_again(
    broker: Broker, broker_url: str, publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = dead_letter(publisher, [failed_delivery(number) for number in range(3)])
    dead = dead_sets(broker_url, publisher, journal=journal_in(tmp_path / "sent")).only("post.dead")
    contains, looks = ReturnedCopies.contains, count(1)

    def lose_the_first_look(self: ReturnedCopies, letter: DeadLetter) -> bool:
        """Lose the connection of the look once, when the broker has confirmed the letter."""
        if next(looks) == 1:
            self._connection.connection.transport.close()
        return contains(self, letter)

    monkeypatch.setattr(ReturnedCopies, "contains", lose_the_first_look)
    results = [dead.replay(), dead.replay()]
    sent = [message.headers[REPLAY_HISTORY][0] for message in broker.peek("mail")]
    assert sorted(sent) == sorted(ids)
    assert results[1].stayed == {ids[0]: IN_DOUBT}


# Dropping and restoring


def test_dropped_letters_are_exported_first_and_restored_unchanged(
    dead: DeadSets, broker: Broker, publisher: Publisher, tmp_path: Path
) -> None:
    dead_letter(publisher, [failed_delivery(number) for number in range(5)], failure())
    headers = {
        "bytes": b"\xff\x00",
        "when": datetime(2026, 1, 2, 3, 4, 5),
        "deep": {"a": [1, None]},
    }
    broker.post(b"\xff raw", exchange="art.failed", key="index", headers=headers, content_type="text/plain")
    before = dead.letters()
    file = tmp_path / "dropped.jsonl"
    result = dead.drop(LetterFilter(), file)
    assert result.done == [letter.id for letter in before]
    assert dead.letters() == []
    assert file.stat().st_mode & 0o777 == 0o600
    assert {line["file"] for line in audited(tmp_path)} == {str(file)}
    assert len(dead.restore([*read_export(file), *read_export(file)])) == 6
    assert dead.restore(read_export(file)) == []
    after = dead.letters()
    for old, new in zip(before, after, strict=True):
        assert (new.id, new.cause, new.queue, new.set) == (old.id, old.cause, old.queue, old.set)
        assert (new.delivery.body, new.delivery.headers) == (old.delivery.body, old.delivery.headers)
        assert new.delivery.routing_key == old.delivery.routing_key
        assert new.delivery.content_type == old.delivery.content_type


def test_a_restored_letter_that_nothing_was_bound_for_is_unroutable_as_before(
    dead: DeadSets, broker: Broker, broker_url: str, tmp_path: Path
) -> None:
    with Connection(broker_url) as connection, connection.channel() as channel:
        arguments = {"alternate-exchange": "post.dead"}
        channel.exchange_declare("post", "direct", durable=True, auto_delete=False, arguments=arguments)
    broker.post(b"{}", exchange="post", key="mial", timestamp=1_700_000_000)
    [before] = dead.letters()
    assert dead.drop([before.id], tmp_path / "dropped.jsonl").complete
    assert dead.restore(read_export(tmp_path / "dropped.jsonl")) == [before.id]
    [after] = dead.letters()
    assert (after.reason, after.error, after.failed_at) == (before.reason, before.error, before.failed_at)
    assert (after.reason, after.delivery.headers) == ("unroutable", {})


def test_without_a_writable_audit_nothing_is_replayed_or_restored_and_without_an_export_nothing_dropped(
    broker: Broker, broker_url: str, publisher: Publisher, tmp_path: Path
) -> None:
    dead_letter(publisher, [failed_delivery(1)])
    dead = dead_sets(broker_url, publisher, tmp_path)  # A folder.
    for act in (dead.replay, partial(dead.restore, dead.letters())):
        with pytest.raises(ApplicationError, match="Is a directory"):
            act()
    assert dead_sets(broker_url, publisher).drop(LetterFilter(), tmp_path).stopped == f"{tmp_path}: Is a directory"
    assert (broker.depth("mail"), len(dead.letters())) == (0, 1)


# `celery -A yours dead`, called in this process; tests/acceptance/test_library.py runs it in a project of its own.


def test_letters_are_shown_dropped_and_restored_by_id_and_cause(
    broker_url: str, publisher: Publisher, tmp_path: Path
) -> None:
    app = Celery("shop", broker=broker_url, set_as_current=False)
    install(app, POLICIES)
    export = str(tmp_path / "dropped.jsonl")

    def run(*arguments: str, exit_code: int = 0) -> str:
        done = CliRunner().invoke(dead_command, arguments, obj=SimpleNamespace(app=app))
        assert done.exit_code == exit_code, done.output
        return done.output

    [ident] = dead_letter(publisher, [failed_delivery([["table"], {}, {}])], failure(line=9))
    dead_letter(publisher, [failed_delivery([[item], {}, {}]) for item in ("lamp", "chair")])
    listed = run("list", "--limit", "1")
    assert (listed.count("\n"), listed.split("\t")[0]) == (1, ident)
    assert '"table"' in run("show", ident[:8])
    key, count, *_ = run("list", "--groups", "--limit", "1").split("\t")
    assert count == "2"
    assert run("drop", "--group", key, "--export", export) == "2 dropped\n"
    assert run("list").startswith(ident)
    assert run("drop", ident, "--export", export) == "1 dropped\n"
    assert run("list") == ""
    assert run("restore", export) == "3 restored\n"
    assert run("list").count("\n") == 3
    assert "matches none of the dead letters" in run("show", "none", exit_code=1)
    assert "give ids, --group KEY or --all" in run("replay", exit_code=2)
    assert "no dead letter has the group 0badkey" in run("replay", "--group", "0badkey", exit_code=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "step"),
    [
        # Two of the three letters are at each step of a replay when it is killed before every second operation.
        ("replay", 2),
        ("drop", 1),
        ("replay in shards", 11),
        ("tidy in shards", 11),
        *(
            pytest.param(act, 1, marks=pytest.mark.long)
            for act in ("replay", "replay in shards", "drop in shards", "tidy in shards")
        ),
    ],
)
@pytest.mark.timeout(400)
def test_after_a_kill_before_any_operation_no_letter_is_lost_and_each_removal_is_audited(
    broker_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str, step: int
) -> None:
    in_shards = act.endswith("in shards")
    if in_shards:
        for name in ("SHARD_LETTERS", "MOVE_ABOVE", "_BATCH"):
            monkeypatch.setattr(shards, name, getattr(shards, name))
        small_shards()
    publisher, broker = Publisher(broker_url, timeout=60), Broker(broker_url)
    dead = dead_sets(broker_url, publisher).only("post.dead")
    command = [sys.executable, "-m", "tests.support.dead_killing"]
    killed = twice = 0
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as operators:
        assert operators.stdin is not None
        assert operators.stdout is not None
        for operation in count(1, step):
            ids = dead_letter(publisher, [failed_delivery(number) for number in range(13 if in_shards else 3)])
            file = tmp_path / f"{operation}.jsonl"
            print(json.dumps([act, broker_url, operation, str(file)]), file=operators.stdin, flush=True)
            ended = json.loads(operators.stdout.readline())
            assert not ended["failed"]
            if act.startswith("replay") and ended["killed"]:
                require_sent_once(ids, broker_url, publisher, broker, file)
            twice += found_everywhere(ids, dead, broker, file, in_shards=in_shards)
            if not ended["killed"]:
                break
            killed += 1
        operators.stdin.close()
    publisher.close()
    assert killed > 20 // step
    # Of a letter in two queues of the dead set, only one is shown. One that was safe elsewhere at the kill, and not yet
    # removed, is in both places; with large steps, no kill need meet such a moment.
    if "tidy" in act:
        assert not twice
    elif not in_shards:
        assert twice


def require_sent_once(ids: list[str], url: str, publisher: Publisher, broker: Broker, file: Path) -> None:
    """Assert that a replay after a killed one sends no letter a second time, and leaves only those in doubt."""
    journal = journal_in(file.with_suffix(".sent"))
    dead = dead_sets(url, publisher, file.with_suffix(".audit"), journal=journal).only("post.dead")
    result = dead.replay()
    queued = [message.headers[REPLAY_HISTORY][0] for message in broker.peek("mail")]
    assert len(queued) == len(set(queued))
    assert set(result.stayed.values()) <= {IN_DOUBT}
    assert set(queued) | set(result.stayed) == set(ids)
    assert [letter.id for letter in dead.summaries()] == list(result.stayed)


def found_everywhere(ids: list[str], dead: DeadSets, broker: Broker, file: Path, *, in_shards: bool) -> int:
    """Assert that each letter is somewhere, and audited if it left; empty the queues; return how many are twice."""
    left = [letter.id for letter in dead.letters()]
    # Without shards, the summaries are those letters.
    assert not in_shards or [letter.id for letter in dead.summaries()] == left
    sent = [message.headers[REPLAY_HISTORY][0] for message in broker.take("mail")]
    exported = [letter.id for letter in read_export(file)] if file.exists() else []
    audit = file.with_suffix(".audit")
    noted = [json.loads(line)["id"] for line in audit.read_text().splitlines()] if audit.exists() else []
    assert set(left) | set(sent) | set(exported) == set(ids)
    assert set(ids) - set(left) <= set(noted)
    assert left == [each for each in ids if each in left]
    if in_shards:
        dead.forget(LetterFilter())
    else:
        broker.take("post.dead")
    return len(set(left) & {*sent, *exported})
