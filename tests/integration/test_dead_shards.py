"""Dead sets in shards: what the index says is what is there, and a moved letter is the one that it was."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from amqp.exceptions import AccessRefused
from kombu import Connection

from app.broker import publishing
from app.broker.dead_letters import DeadLetter, LetterFilter, reading, sets, shards
from app.broker.dead_letters.exports import read_export
from app.broker.dead_letters.sets import DeadSets
from app.broker.errors import InvalidMessage
from app.broker.headers import MOVED_FROM
from app.broker.policies.delay_queues import DelayQueues
from app.broker.publishing import Publisher
from tests.support.broker import Broker
from tests.support.dead import (
    dead_letter,
    dead_sets,
    failed_delivery,
    failure,
    small_shards,
)
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("vhost_of_dead_sets")]


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def dead(
    broker: Broker,
    broker_url: str,
    publisher: Publisher,
    tmp_path: Path,
    notes: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> DeadSets:
    """Return the dead set of `mail`, whose shards have four letters and are filled from seven letters on."""
    for name in ("SHARD_LETTERS", "MOVE_ABOVE", "_BATCH"):
        monkeypatch.setattr(shards, name, getattr(shards, name))
    small_shards()
    options: dict[str, Any] = {
        "on_warning": notes.append,
        "labels": lambda letter: {"body": str(letter.arguments())},
    }
    return dead_sets(broker_url, publisher, tmp_path / "audit.jsonl", **options).only("post.dead")


def fill(publisher: Publisher, count: int) -> list[str]:
    """Dead-letter numbered messages, each failed 100 s after the one before; return their ids."""
    return [dead_letter(publisher, [failed_delivery(number)], failure(at=100.0 * number))[0] for number in range(count)]


def remove_queue(broker_url: str, queue: str) -> None:
    with Connection(broker_url) as connection, connection.channel() as channel:
        channel.queue_delete(queue)


def test_the_oldest_letters_are_moved_and_every_way_to_read_shows_all_in_order(
    dead: DeadSets, broker: Broker, publisher: Publisher, notes: list[str]
) -> None:
    ids = fill(publisher, 15)
    assert [letter.id for letter in dead.summaries()] == ids
    assert broker.depths(["post.dead", "post.dead.shard.1", "post.dead.shard.2", "post.dead.shard.3"]) == [3, 4, 4, 4]
    for _ in range(2):
        assert [letter.id for letter in dead.summaries()] == ids
        assert [letter.delivery.body for letter in dead.letters()] == [b"%d" % number for number in range(15)]
    assert [letter.id for letter in dead.summaries(limit=6)] == ids[:6]
    assert [letter.id for letter in dead.find([ids[2], ids[14], ids[9][:13]])] == [ids[2], ids[14], ids[9]]
    assert [letter.id for letter in dead.letters(LetterFilter(before=550.0, after=250.0))] == ids[3:6]
    [group] = dead.groups()
    assert (group.count, group.first, group.last, group.location) == (15, 0.0, 1_400.0, "shop/till.py:7 in sell")
    assert [letter.labels["body"] for letter in dead.summaries(limit=2)] == ["0", "1"]
    assert dead.depth() == 15
    assert notes == []


def test_a_moved_letter_is_the_same_as_before_and_a_foreign_reader_finds_where_it_was(
    dead: DeadSets, broker: Broker, broker_url: str, publisher: Publisher
) -> None:
    headers = {"bytes": b"\xff\x00", "deep": {"a": [1, None]}, "x-death": [{"queue": "mail", "count": 2}]}
    broker.post(
        b"\xff raw", exchange="post.dead", key="m.a", headers=headers, content_type="text/plain", expiration="99999"
    )
    broker.post(b"late", exchange="", key="mail", expiration="1", message_id="m-1", timestamp=1_000_000)
    eventually(lambda: broker.depth("post.dead") == 2, "the broker has dead-lettered it")
    dead_letter(publisher, [failed_delivery("mine")], failure())
    unmoved = {letter.delivery.body: letter for letter in dead.letters()}
    fill(publisher, 10)
    again = {letter.delivery.body: letter for letter in dead.letters()}
    assert broker.depth("post.dead.shard.1") == 4
    for body, letter in unmoved.items():
        assert again[body] == letter
        assert again[body].delivery.properties == letter.delivery.properties
    assert len(unmoved) == 3
    moved = [message.headers[MOVED_FROM] for message in broker.peek("post.dead.shard.1")]
    assert [(each["exchange"], each["routing-key"]) for each in moved][:3] == [
        ("post.dead", "m.a"),
        ("post.dead", "mail"),
        ("post.dead", "mail"),
    ]


def test_letters_in_shards_are_replayed_and_dropped_and_an_empty_shard_is_deleted(
    dead: DeadSets, broker: Broker, broker_url: str, publisher: Publisher, tmp_path: Path, notes: list[str]
) -> None:
    ids = fill(publisher, 15)
    assert dead.replay([ids[1], ids[6][:14]]).done == [ids[1], ids[6]]
    assert dead.drop([ids[13], ids[0]], tmp_path / "dropped").done == [ids[0], ids[13]]
    assert [letter.id for letter in read_export(tmp_path / "dropped")] == [ids[0], ids[13]]
    left = [each for number, each in enumerate(ids) if number not in (0, 1, 6, 13)]
    assert [letter.id for letter in dead.letters()] == left
    assert dead.replay(lambda letter: letter.id in ids[:8]).complete
    with Connection(broker_url) as connection, pytest.raises(connection.channel_errors, match="no queue"):
        connection.channel().queue_declare("post.dead.shard.1", passive=True)
    assert len(dead.restore(read_export(tmp_path / "dropped"))) == 2
    assert dead.restore(read_export(tmp_path / "dropped")) == []
    assert dead.replay().complete
    assert sorted(int(message.body) for message in broker.take("mail")) == list(range(15))
    assert dead.letters() == []
    assert notes == []


def test_equal_letters_keep_their_numbers_across_shards(dead: DeadSets, broker: Broker) -> None:
    for _ in range(11):
        broker.post(b"again", exchange="post.dead", key="mail")
    ids = [letter.id for letter in dead.letters()]
    assert ids == [ids[0], *(f"{ids[0]}.{number}" for number in range(2, 12))]
    assert [letter.id for letter in dead.find([f"{ids[0][:6]}.6", ids[10]])] == [ids[5], ids[10]]
    result = dead.replay([ids[1], ids[5], ids[6], ids[10]])
    assert result.done == [ids[1], ids[5], ids[6], ids[10]]
    assert (len(dead.letters()), broker.depth("mail")) == (7, 4)


def test_where_index_and_shard_disagree_the_shard_counts_and_a_note_says_so(
    dead: DeadSets, broker: Broker, broker_url: str, publisher: Publisher, notes: list[str]
) -> None:
    ids = fill(publisher, 15)
    dead.depth()
    # A foreign consumer takes a letter, and a foreign writer puts one in.
    with Connection(broker_url) as connection, connection.channel() as channel:
        channel.basic_get("post.dead.shard.1", no_ack=True)
    broker.post(b"\x00foreign", exchange="", key="post.dead.shard.2")
    found = dead.summaries()
    assert len(found) == 15
    assert [letter.id for letter in dead.letters()] == [letter.id for letter in found]
    assert notes == [
        "post.dead.shard.1: the index names 4 letters, and it has 3; it is read again",
        "post.dead.shard.2: the index names 4 letters, and it has 5; it is read again",
    ]
    # A letter leaves and another one comes: the counts agree, and the letter is missing when it is needed.
    with Connection(broker_url) as connection, connection.channel() as channel:
        channel.basic_get("post.dead.shard.3", no_ack=True)
    broker.post(b"another", exchange="", key="post.dead.shard.3")
    assert dead.replay({"post.dead": [ids[8], ids[9]]}).missing == [ids[8]]
    with pytest.raises(InvalidMessage, match="matches none"):
        dead.find([ids[8]])
    assert notes[2:] == ["post.dead.shard.3: letters that the index names are not there; it is read again"]
    # The whole index is lost, then a shard.
    notes.clear()
    broker.take("post.dead.index")
    broker.post(b"junk", exchange="", key="post.dead.index")
    assert len(dead.summaries()) == 14
    assert "post.dead.index: removed an invalid message" in notes
    remove_queue(broker_url, "post.dead.index")
    assert len(dead.summaries()) == 14
    remove_queue(broker_url, "post.dead.shard.2")
    notes.clear()
    assert len(dead.summaries()) == 9
    assert notes == ["post.dead.shard.2: the index names 5 letters, and it has 0; it is read again"]
    notes.clear()
    assert len(dead.summaries()) == 9
    assert notes == []


def test_readers_and_operators_at_the_same_time_wait_for_each_other(
    dead: DeadSets, broker: Broker, publisher: Publisher
) -> None:
    ids = fill(publisher, 40)

    def act(number: int) -> int:
        return len(dead.replay([ids[number]]).done) if number % 2 else len(dead.groups())

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(act, range(6))) == [1] * 6
    assert sorted(int(message.body) for message in broker.take("mail")) == [1, 3, 5]
    assert [letter.id for letter in dead.letters()] == [ids[0], ids[2], ids[4], *ids[6:]]


@pytest.mark.parametrize("queue", ["post.dead", "post.dead.index", "post.dead.shard.1"])
def test_what_a_killed_process_still_holds_of_a_set_is_waited_for_and_read(
    dead: DeadSets, broker_url: str, publisher: Publisher, notes: list[str], monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    ids = fill(publisher, 15)
    assert dead.depth() == 15
    # For a moment the broker does not know that a process was killed: its consumer holds every message.
    killed = Connection(broker_url)
    held: list[Any] = []
    killed.default_channel.basic_consume(queue, callback=held.append)
    while not held:
        killed.drain_events(timeout=10)
    waits: list[float] = []

    def notice(seconds: float) -> None:
        waits.append(seconds)
        killed.release()

    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=time.monotonic, sleep=notice))
    assert [letter.id for letter in dead.letters()] == ids
    assert waits == [reading._LEASE_INTERVAL]
    assert notes == [
        f"{queue}: the index names 4 letters, and it has 0; it is read again" for _ in range("shard" in queue)
    ]


def test_no_other_consumer_takes_letters_while_a_part_of_a_set_is_read(
    dead: DeadSets, broker_url: str, publisher: Publisher
) -> None:
    ids = fill(publisher, 15)
    found = []
    with closing(dead.iter_letters()) as letters, Connection(broker_url) as other:
        for letter in letters:
            found.append(letter.id)
            part = "post.dead.shard.1" if len(found) == 1 else "post.dead" if len(found) == 13 else None
            if part:
                with pytest.raises(AccessRefused, match=f"'{part}' .* in exclusive use"):
                    other.channel().basic_consume(part, callback=print)
    assert found == ids


def test_a_letter_that_cannot_be_moved_or_routed_stays_and_the_others_leave_once(
    dead: DeadSets, broker: Broker, broker_url: str, publisher: Publisher, notes: list[str]
) -> None:
    with Connection(broker_url) as connection, connection.channel() as channel:
        channel.exchange_declare("office", "direct", durable=True, arguments={"alternate-exchange": "post.dead"})
        channel.queue_bind("mail", "office", "mail")
    office = DeadSets(DelayQueues("post", exchange="office"), broker_url, publisher, on_warning=notes.append)
    # The header of a move does not fit into the frame any more.
    broker.post(b"large", exchange="post.dead", key="mail", headers={"large": "x" * 130_990})
    # An alternate exchange hides this from the publisher: the copy that comes back is recognised and removed.
    for body in (b"x", b"y"):
        broker.post(body, exchange="office", key="mial")
    fill(publisher, 12)
    before = [letter.delivery.body for letter in office.letters()]
    assert sorted(before) == sorted([b"large", b"x", b"y", *(b"%d" % number for number in range(12))])
    result = office.replay()
    assert (len(result.done), len(result.stayed)) == (12, 3)
    assert list(result.stayed.values()).count("no queue is bound for exchange 'office' with key 'mial'") == 2
    assert sorted(int(message.body) for message in broker.take("mail")) == list(range(12))
    assert sorted(letter.delivery.body for letter in office.letters()) == [b"large", b"x", b"y"]
    assert broker.depth("post.dead") + broker.depth("post.dead.shard.1") == 3


def test_tidy_finds_a_shard_that_no_index_names_and_exports_and_drops_letters_beyond_a_number(
    dead: DeadSets, broker_url: str, publisher: Publisher, tmp_path: Path
) -> None:
    first, ids = fill(publisher, 4), fill(publisher, 15)
    assert dead.drop(first, tmp_path / "first").complete
    remove_queue(broker_url, "post.dead.index")
    assert len(dead.letters()) == 3
    moved, result = dead.tidy(0, tmp_path / "none")
    assert (moved, result.done) == ({"post.dead": 12}, [])
    moved, result = dead.tidy(9, tmp_path / "dropped")
    assert (moved, result.done, result.complete) == ({"post.dead": 6}, ids[:6], True)
    assert [letter.id for letter in read_export(tmp_path / "dropped")] == ids[:6]
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(line["act"], line["id"]) for line in lines] == [("drop", each) for each in (*first, *ids[:6])]
    assert [letter.id for letter in dead.letters()] == ids[6:]


def test_an_unsharded_dead_set_is_read_up_to_a_limit_and_tidied_as_a_whole(
    broker: Broker, broker_url: str, publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_READ", 5)
    monkeypatch.setattr(shards, "MAX_READ", 5)
    notes: list[str] = []
    art = dead_sets(broker_url, publisher, on_warning=notes.append).only("art.failed")
    ids = dead_letter(publisher, [failed_delivery(number, "art.index") for number in range(12)])
    assert [letter.id for letter in art.letters()] == ids[:5]
    assert notes == ["art.failed: only the oldest 5 of 12 letters were read"]
    assert art.depth() == 12
    assert art.replay([ids[2]]).done == [ids[2]]
    assert art.tidy(3, tmp_path / "dropped")[1].done == [*ids[:2], *ids[3:9]]
    assert [letter.id for letter in art.letters()] == ids[9:]


def test_letters_are_not_restored_to_an_unsharded_dead_set_that_is_too_long_to_be_compared(
    broker: Broker, broker_url: str, publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (reading, shards, sets):
        monkeypatch.setattr(module, "MAX_READ", 5)
    art, export = dead_sets(broker_url, publisher).only("art.failed"), tmp_path / "dropped"
    ids = dead_letter(publisher, [failed_delivery(number, "art.index") for number in range(7)])
    assert [art.drop(LetterFilter(), export).done for _ in range(2)] == [ids[:5], ids[5:]]
    assert art.restore(read_export(export)) == ids
    with pytest.raises(InvalidMessage, match=r"art\.failed has 7 letters, and only 5 of them can be compared"):
        art.restore(read_export(export))
    art.replay(ids[:2])
    assert art.restore(list(read_export(export))[2:]) == []
    assert [letter.id for letter in art.letters()] == ids[2:]


def test_what_a_move_duplicated_before_a_kill_is_removed_only_if_it_is_the_same_message(
    dead: DeadSets, broker: Broker, publisher: Publisher, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = fill(publisher, 3)
    for _ in range(6):
        broker.post(b"anonymous", exchange="post.dead", key="mail")
    move = shards.ShardedSet._move

    class Killed(BaseException):
        pass

    def publish_only(self: Any, reader: Any, queue: str, batch: list[tuple[DeadLetter, int]]) -> Any:
        move(self, type("Kept", (), {"remove": lambda *_: None})(), queue, batch)
        raise Killed

    write = shards.ShardedSet._write
    with monkeypatch.context() as patch:
        patch.setattr(shards.ShardedSet, "_move", publish_only)
        patch.setattr(shards.ShardedSet, "_write", lambda self, entry: entry.revision or write(self, entry))
        with pytest.raises(Killed):
            dead.depth()
    assert broker.depths(["post.dead", "post.dead.shard.1"]) == [9, 2]
    assert [letter.id for letter in dead.summaries()][:3] == ids
    assert "post.dead: removed 2 copies of letters that are in a shard" in notes
    assert len(dead.letters()) == 9


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost connection", "no confirm in time"])
def test_what_a_move_duplicated_by_a_missing_confirm_is_removed(
    dead: DeadSets, broker: Broker, publisher: Publisher, monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    ids = fill(publisher, 7)
    awaited, waits = Publisher._await_answers, count(1)

    def await_or_miss(self: Publisher, *arguments: Any) -> None:
        """Miss the confirms of the first letters of the shard, after the entry of the index."""
        if next(waits) == 2:
            eventually(lambda: broker.depth("post.dead.shard.1") == 2, "the letters are in their shard")
            if is_lost:
                self._drop()
                raise ConnectionResetError
            raise publishing._NoAnswer("no confirm")
        awaited(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Publisher, "_await_answers", await_or_miss)
        assert dead.replay().done == ids
    assert [message.body for message in broker.take("mail")] == [str(number) for number in range(7)]
    assert dead.letters() == dead.summaries() == []
