"""Dead sets on a real broker: looking changes nothing, and what leaves is somewhere else first."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from kombu import Connection

from app.broker.dead_letters import operations, reading
from app.broker.dead_letters.exports import read_export
from app.broker.dead_letters.letters import LetterFilter
from app.broker.dead_letters.sets import DeadSets
from app.broker.errors import ApplicationError, BrokerUnreachable, DeadSetBusy, InvalidMessage
from app.broker.headers import REPLAY, REPLAY_HISTORY
from app.broker.policies.delay_queues import DelayQueues
from app.broker.publishing import Outgoing, Publisher
from tests.support.broker import Broker
from tests.support.dead import DEAD_OF, OF_QUEUE, bury, dead_sets, declare, died, failure
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


@pytest.fixture
def broker(broker_url: str) -> Broker:
    declare(broker_url)
    return Broker(broker_url)


@pytest.fixture
def publisher(broker_url: str) -> Iterator[Publisher]:
    publisher = Publisher(broker_url, timeout=60)
    yield publisher
    publisher.close()


@pytest.fixture
def dead(broker: Broker, broker_url: str, publisher: Publisher, tmp_path: Path) -> DeadSets:
    return dead_sets(broker_url, publisher, tmp_path / "audit.jsonl")


def audited(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]


def bodies(messages: list[Any]) -> list[str]:
    return [bytes(message.body).decode() if not isinstance(message.body, str) else message.body for message in messages]


# Looking


def test_looking_twice_shows_the_same_in_the_same_order_and_counts_as_no_delivery(
    dead: DeadSets, broker: Broker, publisher: Publisher
) -> None:
    ids = bury(publisher, [died(number) for number in range(300)])
    for _ in range(2):
        assert [letter.id for letter in dead.letters()] == ids
    with closing(dead.iter_letters()) as letters:
        assert next(letters).id == ids[0]
    assert [letter.id for letter in dead.iter_letters(first=7)] == ids[:7]
    assert dead.depth() == 300
    taken = broker.take("post.dead")
    assert bodies(taken) == [str(number) for number in range(300)]
    assert all("x-delivery-count" not in message.headers for message in taken)


def test_what_arrives_while_somebody_looks_stays_behind_what_was_there(
    dead: DeadSets, broker: Broker, publisher: Publisher
) -> None:
    ids = bury(publisher, [died(number) for number in range(10)])
    with closing(dead.iter_letters()) as letters:
        seen = [next(letters).id]
        later = bury(publisher, [died("new")])
        seen += [letter.id for letter in letters]
    assert seen == ids
    assert [letter.id for letter in dead.letters()] == [*ids, *later]


def test_two_who_look_at_once_see_everything_one_after_the_other(dead: DeadSets, publisher: Publisher) -> None:
    ids = bury(publisher, [died(number) for number in range(500)])
    with ThreadPoolExecutor(4) as pool:
        looks = list(pool.map(lambda _: [letter.id for letter in dead.letters()], range(4)))
    assert looks == [ids] * 4


def test_somebody_who_takes_too_long_is_spoken_of_and_a_foreign_consumer_too(
    dead: DeadSets, broker_url: str, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(publisher, [died(1)])
    monkeypatch.setattr(reading, "LEASE_TIMEOUT", 0.3)
    busy = pytest.raises(DeadSetBusy, match=r"another process works on the dead set post\.dead")
    with reading.leased(broker_url, "post.dead"), busy:
        dead.letters()
    with Connection(broker_url) as connection:
        connection.channel().basic_consume("post.dead", callback=print)
        with busy:
            dead.letters()
    eventually(lambda: Broker(broker_url).consumers("post.dead") == 0, "the foreign consumer is gone")
    assert len(dead.letters()) == 1


def test_a_dead_set_that_was_never_declared_is_empty_and_an_unreachable_broker_an_error(
    broker_url: str, publisher: Publisher
) -> None:
    policy = DelayQueues("nowhere")
    assert DeadSets.of(policy, broker_url, publisher).letters() == []
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1"):
        DeadSets.of(policy, "amqp://guest:secret@127.0.0.1:1//", publisher).letters()


@pytest.mark.parametrize("total", [20_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_large_dead_set_is_streamed_while_new_letters_arrive(
    dead: DeadSets, broker: Broker, broker_url: str, publisher: Publisher, total: int
) -> None:
    send(publisher, total)
    stop = threading.Event()
    producer = threading.Thread(target=keep_sending, args=(broker_url, stop))
    producer.start()
    memory = psutil.Process().memory_info
    before, most, seen, in_order = memory().rss, 0, 0, True
    try:
        for letter in dead.iter_letters():
            in_order &= letter.delivery.body == b"%d" % seen
            seen += 1
            most = max(most, memory().rss) if seen % 1_000 == 0 else most
    finally:
        stop.set()
        producer.join()
    assert seen >= total
    assert in_order
    # All of them at once would be hundreds of MB.
    assert most - before < 50_000_000
    with closing(dead.iter_letters()) as again:
        assert [next(again).delivery.body for _ in range(3)] == [b"0", b"1", b"2"]
    assert eventually(lambda: broker.depth("post.dead") >= seen, "all are back")
    # The broker would be busy with them in the next test.
    with Connection(broker_url) as connection:
        connection.channel().queue_purge("post.dead")


def send(publisher: Publisher, count: int) -> None:
    """Put small dead messages there, as a worker's look like."""
    headers = {"perennial-reason": "exception", "perennial-queue": "mail", "perennial-exception": "KeyError"}
    for first in range(0, count, 5_000):
        publisher.publish(
            [
                Outgoing(exchange="post.dead", routing_key="mail", body=b"%d" % number, headers=headers)
                for number in range(first, first + 5_000)
            ]
        )


def keep_sending(broker_url: str, stop: threading.Event) -> None:
    publisher = Publisher(broker_url, timeout=60)
    number = 100_000
    while not stop.wait(0.01):
        publisher.publish([Outgoing(exchange="post.dead", routing_key="mail", body=b"%d" % number)])
        number += 1
    publisher.close()


# What a message is


def test_every_kind_of_dead_message_is_told_of_and_goes_home(
    dead: DeadSets, broker: Broker, broker_url: str, publisher: Publisher
) -> None:
    for queue in OF_QUEUE:
        bury(publisher, [died({"n": 1}, queue)], failure())
    letters = {letter.set: letter for letter in dead.letters()}
    assert {name: letter.queue for name, letter in letters.items()} == {dead: queue for queue, dead in DEAD_OF.items()}
    assert {letter.cause.location for letter in letters.values()} == {"shop/till.py:7 in sell"}
    assert {letter.cause.attempts for letter in letters.values()} == {1}
    worked = dead.replay()
    assert len(worked.done) == 3
    assert worked.complete
    for queue, key in (("mail", "mail"), ("art.index", "index"), ("orders", "orders")):
        [message] = broker.take(queue)
        assert message.headers[REPLAY_HISTORY] == [letters[DEAD_OF[queue]].id]
        assert message.headers[REPLAY] == OF_QUEUE[queue].replay_budget
        assert message.delivery_info["routing_key"] == key
        assert message.properties["correlation_id"] == "c-1"
        assert not [name for name in message.headers if name.startswith(("x-", "perennial-dead", "perennial-reason"))]
    assert dead.letters() == []


def test_what_the_broker_or_a_foreign_program_put_there_is_told_of_and_replayed(
    dead: DeadSets, broker: Broker, publisher: Publisher
) -> None:
    # A Perl indexer's failure, a Sneakers worker's, the broker's own, and one that somebody put there by hand.
    perl = {"mb-retries": -1, "mb-exceptions": ["503", "timed out"]}
    info = json.dumps({"error": "reject", "num_attempts": 6, "error_class": "Net::ReadTimeout", "error_message": "x"})
    broker.post(b"a gid", exchange="art.failed", key="index", headers=perl)
    broker.post(b"<order/>", exchange="orders.error", key="order.new", headers={"retry_info": info})
    broker.post(b"[1]", exchange="", key="mail", expiration="1")
    broker.post(b"by hand", exchange="post.dead", key="mail")
    eventually(lambda: broker.depth("post.dead") == 2, "the broker has dead-lettered it")
    told = {(letter.set, letter.reason, letter.queue, letter.cause.error) for letter in dead.letters()}
    assert told == {
        ("art.failed", "exception", "", "timed out"),
        ("orders.error", "reject", "", "Net::ReadTimeout: x"),
        ("post.dead", "expired", "mail", ""),
        ("post.dead", "by-hand", "", ""),
    }
    assert len(dead.replay().done) == 4
    assert bodies(broker.take("art.index")) == ["a gid"]
    assert bodies(broker.take("orders")) == ["<order/>"]
    assert sorted(bodies(broker.take("mail"))) == ["[1]", "by hand"]


def test_garbage_in_every_header_keeps_nobody_from_looking_and_each_one_can_be_named(
    dead: DeadSets, broker: Broker
) -> None:
    names = ["dead-id", "reason", "queue", "task", "exception", "message", "traceback", "first-failed-at", "failed-at"]
    for value in ([1, 2], {"a": 1}, True, 1e300, -(2**60), "x" * 2_000, b"\xff\xfe"):
        headers = {f"perennial-{name}": value for name in (*names, "attempts", "worker", "replay-of")}
        broker.post(
            b"\xff\x00", exchange="post.dead", key="mail", headers=headers | {"x-death": value, "retry_info": value}
        )
    broker.post(b"", exchange="post.dead", key="mail", headers={"x-death": [{"queue": 7, "time": "x", "count": "y"}]})
    letters = dead.letters()
    assert len({letter.id for letter in letters}) == 8
    for letter in letters:
        assert dead.find([letter.id]) == [letter]
        assert len(letter.group) == 8
    assert sum(group.count for group in dead.groups()) == 8


def test_equal_messages_have_names_of_their_own_and_leave_one_by_one(dead: DeadSets, broker: Broker) -> None:
    for _ in range(3):
        broker.post(b"again", exchange="post.dead", key="mail")
    first, second, third = (letter.id for letter in dead.letters())
    assert (second, third) == (f"{first}.2", f"{first}.3")
    assert [letter.id for letter in dead.find([f"{first[:8]}.2"])] == [second]
    assert dead.replay([second, third]).done == [second, third]
    assert [letter.id for letter in dead.letters()] == [first]
    assert broker.depth("mail") == 2


def test_filters_and_groups_tell_the_deaths_apart(dead: DeadSets, publisher: Publisher) -> None:
    bury(publisher, [died(number) for number in range(3)], failure(7, at=1_000.0, task="shop.sell"))
    bury(publisher, [died(number) for number in range(2)], failure(9, at=2_000.0, task="shop.buy"))
    bury(publisher, [died(1, "orders")], failure(9, at=3_000.0, reason="time-limit"))
    groups = dead.groups()
    assert [(group.count, group.location, group.reason) for group in groups] == [
        (3, "shop/till.py:7 in sell", "exception"),
        (2, "shop/till.py:9 in sell", "exception"),
        (1, "shop/till.py:9 in sell", "time-limit"),
    ]
    assert (groups[0].first, groups[0].last) == (1_000.0, 1_000.0)
    counts = {
        "task": len(dead.letters(LetterFilter(task="shop.buy"))),
        "reason": len(dead.letters(LetterFilter(reason="exception"))),
        "group": len(dead.letters(LetterFilter(group=groups[1].key))),
        "before": len(dead.letters(LetterFilter(before=2_000.0))),
        "after": len(dead.letters(LetterFilter(after=2_000.0))),
        "both": len(dead.letters(LetterFilter(after=2_000.0, exception="KeyError", reason="time-limit"))),
        "set": len(dead.only("orders.error").letters()),
    }
    assert counts == {"task": 2, "reason": 5, "group": 2, "before": 3, "after": 3, "both": 1, "set": 1}


def test_a_name_of_none_or_of_two_is_an_error_that_tells_them(dead: DeadSets, publisher: Publisher) -> None:
    ids = bury(publisher, [died(number) for number in range(40)])
    [(digit, count)] = Counter(ident[0] for ident in ids).most_common(1)
    with pytest.raises(InvalidMessage, match="'xyz' matches none of the dead letters"):
        dead.find(["xyz"])
    with pytest.raises(InvalidMessage, match=f"'{digit}' matches {count} of the dead letters: .*, .*"):
        dead.find([digit])
    with pytest.raises(InvalidMessage, match="'' matches none"):
        dead.find([""])
    with pytest.raises(InvalidMessage, match="no dead set 'x': there are"):
        dead.only("x")


def test_a_whole_id_names_its_message_though_others_begin_with_it(dead: DeadSets, broker: Broker) -> None:
    for ident in ("abcdefgh", "abcdefgh-and-more"):
        broker.post(b"", exchange="post.dead", key="mail", headers={"perennial-dead-id": ident})
    assert [letter.id for letter in dead.find(["abcdefgh"])] == ["abcdefgh"]


# Replaying


def test_the_chosen_ones_leave_and_all_others_keep_their_order(
    dead: DeadSets, broker: Broker, publisher: Publisher, tmp_path: Path
) -> None:
    ids = bury(publisher, [died(number) for number in range(500)])
    chosen = set(ids[3:500:7])
    worked = dead.replay(lambda letter: letter.id in chosen, limit=60)
    assert worked.done == ids[3:500:7][:60]
    assert [letter.id for letter in dead.letters()] == [each for each in ids if each not in worked.done]
    assert bodies(broker.take("mail")) == [str(number) for number in range(3, 500, 7)][:60]
    lines = audited(tmp_path)
    assert [line["id"] for line in lines] == worked.done
    assert {(line["act"], line["set"], line["queue"], line["budget"], line["outcome"]) for line in lines} == {
        ("replay", "post.dead", "mail", "keep", "replayed")
    }
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_long_work_is_done_in_passes_that_give_everything_back(
    dead: DeadSets, broker: Broker, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "PASS_SECONDS", 0.3)
    for _ in range(4):
        broker.post(b"twin", exchange="post.dead", key="mail")
    bury(publisher, [died(number) for number in range(20)])
    there = [letter.id for letter in dead.letters()]
    worked = dead.replay(rate=20.0)
    assert worked.done == there
    assert worked.complete
    assert broker.depth("mail") == 24
    assert dead.letters() == []


def test_what_no_queue_is_bound_for_stays_and_says_so(broker_url: str, broker: Broker, publisher: Publisher) -> None:
    with Connection(broker_url) as connection:
        channel = connection.channel()
        declared = OF_QUEUE["mail"].dead
        assert declared is not None
        channel.exchange_declare("office", "direct", durable=True, arguments={"alternate-exchange": "post.dead"})
        channel.queue_bind("mail", "office", "mail")
    dead = DeadSets.of(DelayQueues("post", exchange="office"), broker_url, publisher)
    # An alternate exchange hides it from the publisher: the copy that comes back is seen, and removed.
    broker.post(b"1", exchange="office", key="mial")
    bury(publisher, [died(2)])
    broker.post(b"3", exchange="office", key="mial")
    broker.post(b"4", exchange="office", key="mial")
    before = [letter.id for letter in dead.letters()]
    worked = dead.replay()
    assert worked.done == [before[1]]
    assert set(worked.stayed.values()) == {"no queue is bound for key 'mial' of exchange 'office'"}
    assert [letter.id for letter in dead.letters()] == [before[0], *before[2:]]
    # Without an alternate exchange, the broker itself says so.
    lost = DeadSets.of(OF_QUEUE["orders"], broker_url, publisher)
    bury(publisher, [died(5, "orders")])
    with Connection(broker_url) as connection:
        connection.channel().queue_delete("orders")
    assert len(lost.replay().stayed) == 1
    assert len(lost.letters()) == 1


def test_a_message_that_left_in_the_meantime_is_missing_and_the_others_go(dead: DeadSets, publisher: Publisher) -> None:
    ids = bury(publisher, [died(number) for number in range(3)])
    chosen = dead.choose(ids)
    dead.replay([ids[1]])
    worked = dead.replay(chosen)
    assert worked.done == [ids[0], ids[2]]
    assert worked.missing == [ids[1]]
    assert not worked.complete


# Canaries


@pytest.mark.parametrize(
    ("outcomes", "left", "stopped"),
    [
        (["lived"] * 30, 0, ""),
        (["died"], 29, "died again: KeyError: boom"),
        (["failed"], 29, "failed again, and waits in the broker"),
        ([], 29, "no outcome within 0.5 s"),
    ],
)
def test_a_canary_goes_first_and_the_others_follow_if_it_lived(
    dead: DeadSets, publisher: Publisher, broker_url: str, outcomes: list[str], left: int, stopped: str
) -> None:
    bury(publisher, [died(number) for number in range(30)])
    with worker_that_says(broker_url, outcomes) as seen:
        worked = dead.replay(canary=0.5 if not outcomes else 30.0)
    assert len(dead.letters()) == left
    assert stopped in worked.stopped
    assert worked.complete == (not stopped)
    assert len(seen) >= len(outcomes)


def test_the_first_relapse_ends_a_replay_and_few_are_under_way_by_then(
    dead: DeadSets, publisher: Publisher, broker_url: str
) -> None:
    ids = bury(publisher, [died(number) for number in range(60)])
    with worker_that_says(broker_url, [*["lived"] * 20, "died", *["lived"] * 40]):
        worked = dead.replay(canary=30.0)
    assert ids[20] in worked.stopped
    assert 21 <= len(worked.done) <= 31
    assert len(dead.letters()) == 60 - len(worked.done)


class worker_that_says:  # noqa: N801 - It reads as a sentence.
    """Consumes `mail` for a `with` block and tells these outcomes, one a message."""

    def __init__(self, broker_url: str, outcomes: list[str]) -> None:
        self._url = broker_url
        self._outcomes = iter(outcomes)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.seen: list[str] = []

    def __enter__(self) -> list[str]:
        self._thread.start()
        return self.seen

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        publisher = Publisher(self._url)
        with Connection(self._url) as connection, connection.channel() as channel:
            while not self._stop.wait(0.005):
                message = channel.basic_get("mail", no_ack=True)
                if message is None or (outcome := next(self._outcomes, None)) is None:
                    continue
                headers = channel.message_to_python(message).headers
                told = {"outcome": outcome, "text": "KeyError: boom", "of": headers[REPLAY_HISTORY][0]}
                self.seen.append(told["of"])
                to = headers["perennial-outcome-to"]
                publisher.publish(
                    [Outgoing(exchange="", routing_key=to, body=json.dumps(told).encode(), mandatory=False)]
                )
        publisher.close()


# Dropping and restoring


def test_what_is_dropped_is_in_the_file_first_and_comes_back_as_it_was(
    dead: DeadSets, broker: Broker, publisher: Publisher, tmp_path: Path
) -> None:
    bury(publisher, [died(number) for number in range(5)], failure())
    headers = {
        "bytes": b"\xff\x00",
        "when": datetime(2026, 1, 2, 3, 4, 5),
        "deep": {"a": [1, None]},
    }
    broker.post(b"\xff raw", exchange="art.failed", key="index", headers=headers, content_type="text/plain")
    before = dead.letters()
    file = tmp_path / "dropped.jsonl"
    worked = dead.drop(LetterFilter(), file)
    assert worked.done == [letter.id for letter in before]
    assert dead.letters() == []
    assert file.stat().st_mode & 0o777 == 0o600
    assert {line["file"] for line in audited(tmp_path)} == {str(file)}
    assert len(dead.restore(read_export(file))) == 6
    assert dead.restore(read_export(file)) == []
    after = dead.letters()
    for old, new in zip(before, after, strict=True):
        assert (new.id, new.cause, new.queue, new.set) == (old.id, old.cause, old.queue, old.set)
        assert (new.delivery.body, new.delivery.headers) == (old.delivery.body, old.delivery.headers)
        assert new.delivery.routing_key == old.delivery.routing_key
        assert new.delivery.content_type == old.delivery.content_type


def test_a_disk_that_takes_nothing_ends_a_drop_and_everything_stays(
    dead: DeadSets, publisher: Publisher, tmp_path: Path
) -> None:
    bury(publisher, [died(1)])
    worked = dead.drop(LetterFilter(), tmp_path)  # A folder.
    assert str(tmp_path) in worked.stopped
    assert len(dead.letters()) == 1


def test_where_nothing_can_be_audited_nothing_is_replayed_or_restored(
    broker: Broker, broker_url: str, publisher: Publisher, tmp_path: Path
) -> None:
    bury(publisher, [died(1)])
    dead = dead_sets(broker_url, publisher, tmp_path)  # A folder.
    for act in (dead.replay, partial(dead.restore, dead.letters())):
        with pytest.raises(ApplicationError, match="Is a directory"):
            act()
    assert (broker.depth("mail"), len(dead.letters())) == (0, 1)


def test_what_stands_twice_in_a_file_is_restored_once(dead: DeadSets, publisher: Publisher, tmp_path: Path) -> None:
    bury(publisher, [died(1)])
    dead.drop(LetterFilter(), tmp_path / "a")
    twice = [*read_export(tmp_path / "a"), *read_export(tmp_path / "a")]
    assert len(dead.restore(twice)) == 1
    assert len(dead.letters()) == 1
