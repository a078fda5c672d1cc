"""Failures in the worker's main process on a real RabbitMQ: outcomes, lost connections, copies with a count."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from kombu import Connection

from app.broker.delivery import Delivery
from app.broker.errors import Postpone
from app.broker.headers import DELIVERIES, OUTCOME_TO, REASON, REPLAY, REPLAY_HISTORY, TASK, WORKER
from app.broker.outcomes import outcomes_exchange
from app.broker.outgoing import Outgoing
from app.broker.policies.base import RetryPolicies
from app.broker.policies.delay_queues import DelayQueues
from app.broker.publishing import Publisher
from app.broker.worker.failures import FailureHandler, UnackedMessage
from tests.support.broker import Broker
from tests.support.clock import HandTimer
from tests.support.deliveries import FAILURE, delivery
from tests.support.limits import no_free_descriptors
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

POLICY = DelayQueues("shop", timeout_ms=100, retry_max=1, queue_type="classic")


@pytest.fixture
def broker(broker_url: str) -> Broker:
    with Connection(broker_url) as connection, connection.channel() as channel:
        for queue in (*POLICY.queues(), POLICY.work_queue("mail")):
            queue(channel).declare()
        outcomes_exchange(channel).declare()
        channel.queue_declare("outcomes", auto_delete=False)
        channel.queue_bind("outcomes", outcomes_exchange.name, "outcomes")
    return Broker(broker_url)


@pytest.fixture
def clock() -> HandTimer:
    return HandTimer()


@pytest.fixture
def outcomes() -> list[tuple[str, ...]]:
    """Return what the application gets of runs."""
    return []


@pytest.fixture
def handler(
    broker: Broker, broker_url: str, clock: HandTimer, outcomes: list[tuple[str, ...]]
) -> Iterator[FailureHandler]:
    publisher = Publisher(broker_url, timeout=60)
    yield FailureHandler(
        policies=RetryPolicies({"mail": POLICY}, POLICY),
        publisher=publisher,
        timer=clock,
        worker="w",
        on_outcome=lambda *outcome: outcomes.append(outcome),
    )
    publisher.close()


def delete_exchange(broker_url: str, name: str) -> None:
    with Connection(broker_url) as connection, connection.channel() as channel:
        channel.exchange_delete(name)


def test_a_replacement_that_waited_is_not_published_if_its_original_is_delivered_again(
    handler: FailureHandler, broker: Broker, broker_url: str, clock: HandTimer
) -> None:
    held, done = True, []
    handler.publisher.declare([POLICY.delay_queue(100)])
    delete_exchange(broker_url, "shop.delay.100")
    handler.fail(UnackedMessage(delivery("mail"), lambda: held, lambda *_: done.append("done")), FAILURE)
    held = False
    clock.pass_time()
    clock.pass_time()
    handler.fail(UnackedMessage(delivery("mail"), lambda: True, lambda *_: done.append("later")), FAILURE)
    clock.pass_time()
    eventually(lambda: broker.depth("mail") == 1, "the later one is back")
    assert (done, broker.depth("shop.delay.100")) == (["later"], 0)


def test_a_failure_in_a_worker_without_file_descriptors_is_retried_and_not_dead_lettered(
    handler: FailureHandler, broker: Broker, clock: HandTimer
) -> None:
    handler.publisher.declare([POLICY.dead, POLICY.delay_queue(100)])
    handler.publisher.close()
    done: list[str] = []
    with no_free_descriptors():
        handler.fail(UnackedMessage(delivery("mail"), lambda: True, lambda *_: done.append("done")), FAILURE)
        clock.pass_time()
    assert done == []
    clock.pass_time()
    eventually(lambda: broker.depth("mail") == 1, "the message is back from its delay queue")
    assert (done, broker.depth("shop.dead")) == (["done"], 0)


def test_a_message_that_is_set_aside_comes_back_as_a_new_one_with_its_count(
    handler: FailureHandler, broker: Broker
) -> None:
    came = replace(delivery("mail"), headers={"mine": "kept", "x-delivery-count": 2}, redelivered=True)
    done: list[str] = []
    handler.set_aside(UnackedMessage(came, lambda: True, lambda *_: done.append("done")), deliveries=2)
    assert done == ["done"]
    eventually(lambda: broker.depth("mail") == 1, "it is back")
    [back] = broker.take("mail")
    assert not back.delivery_info["redelivered"]
    assert (back.headers["perennial-deliveries"], back.headers["mine"]) == (2, "kept")
    assert "x-delivery-count" not in back.headers


class Turn:
    """A turn of an event loop: what fails in it is carried out when the block ends. `done` are ended originals."""

    def __init__(self, handler: FailureHandler) -> None:
        self._handler = handler
        self.done: list[str] = []

    def __enter__(self) -> Turn:
        self._handler.loop_thread = threading.get_ident()
        return self

    def __exit__(self, *_: object) -> None:
        self._handler.loop_thread = None
        before = list(self.done)
        self._handler.flush()
        assert before == []

    def fail(self, name: str, **headers: object) -> None:
        self._handler.fail(self._unacked(name, headers), FAILURE)

    def postpone(self, name: str, **headers: object) -> None:
        self._handler.postpone(self._unacked(name, headers), "task", Postpone(64.0, "later"))

    def _unacked(self, name: str, headers: dict[str, object]) -> UnackedMessage:
        came = replace(delivery("mail"), headers={"name": name, **headers})
        return UnackedMessage(came, lambda: True, lambda *_: self.done.append(name))


def names(broker: Broker, queue: str, *, number: int) -> list[str]:
    """Wait for a number of messages in a queue, take them and return their names."""
    eventually(lambda: broker.depth(queue) == number, f"{number} in {queue}")
    return [message.headers["name"] for message in broker.take(queue)]


def test_five_hundred_postponements_of_one_turn_wait_for_one_confirm(
    handler: FailureHandler, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything, waits = [str(number) for number in range(500)], list[int]()
    publish_each = handler.publisher.publish_each

    def counted(messages: Sequence[Outgoing]) -> dict[int, Exception]:
        waits.append(len(messages))
        return publish_each(messages)

    monkeypatch.setattr(handler.publisher, "publish_each", counted)
    for name in everything[:3]:
        with Turn(handler) as alone:
            alone.postpone(name)
    with Turn(handler) as turn:
        for name in everything:
            turn.postpone(name)
    assert waits == [1, 1, 1, 500]
    assert turn.done == everything
    assert names(broker, "shop.delay.64000", number=503) == [*everything[:3], *everything]


def test_an_unroutable_replacement_waits_alone_and_the_others_of_its_turn_are_not_sent_twice(
    handler: FailureHandler, broker: Broker, broker_url: str, clock: HandTimer
) -> None:
    handler.publisher.declare([POLICY.delay_queue(64_000)])
    with Connection(broker_url) as connection, connection.channel() as channel:
        channel.queue_delete("shop.delay.64000")
    with Turn(handler) as turn:
        turn.fail("a")
        turn.postpone("lost")
        turn.fail("b")
    assert turn.done == ["a", "b"]
    clock.pass_time()
    assert turn.done == ["a", "b", "lost"]
    assert names(broker, "shop.delay.64000", number=1) == ["lost"]
    assert names(broker, "mail", number=2) == ["a", "b"]


def test_a_message_that_cannot_be_encoded_is_dead_lettered_and_the_others_of_its_turn_keep_their_headers(
    handler: FailureHandler, broker: Broker, clock: HandTimer
) -> None:
    with Turn(handler) as turn:
        turn.postpone("a")
        turn.postpone("broken", number=2**64)
        turn.postpone("b")
    assert turn.done == ["a", "b"]
    clock.pass_time()
    assert turn.done == ["a", "b", "broken"]
    assert broker.depth("shop.dead") == 1
    assert set(names(broker, "shop.delay.64000", number=broker.depth("shop.delay.64000"))) == {"a", "b"}


def test_without_a_broker_every_original_of_a_turn_waits_and_each_is_replaced_once_when_it_is_back(
    handler: FailureHandler, broker: Broker, clock: HandTimer
) -> None:
    there, handler.publisher = handler.publisher, Publisher("amqp://127.0.0.1:1//", timeout=1)
    with Turn(handler) as turn:
        for name in "abcd":
            turn.postpone(name)
        turn.postpone("e", text="x" * 110_000)  # No fault of its own, though its headers are long.
    clock.pass_time()
    assert turn.done == []
    handler.publisher = there
    clock.pass_time()
    assert sorted(turn.done) == list("abcde")
    assert sorted(names(broker, "shop.delay.64000", number=5)) == list("abcde")
    assert broker.depth("shop.dead") == 0


def test_the_application_and_an_operator_get_the_outcome_of_each_run_when_its_message_is_safe_and_the_log_its_failures(
    handler: FailureHandler,
    broker: Broker,
    broker_url: str,
    clock: HandTimer,
    outcomes: list[tuple[str, ...]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    failure, done = replace(FAILURE, task="shop.send", reason="server-error"), list[str]()
    replayed = {REPLAY: "fresh", REPLAY_HISTORY: ["1d6a"], OUTCOME_TO: "outcomes"}
    first = replace(delivery("mail"), headers={"id": "m-1", **replayed})
    last = replace(first, headers={**first.headers, "current-iteration": 1})
    crashed = replace(first, headers={**first.headers, DELIVERIES: POLICY.delivery_limit})

    def unacked(came: Delivery) -> UnackedMessage:
        return UnackedMessage(came, lambda: True, lambda *_: done.append("done"))

    handler.publisher.declare([POLICY.dead])
    delete_exchange(broker_url, "shop.dead")
    handler.fail(unacked(last), failure)
    assert (done, outcomes, broker.depths(["outcomes", "shop.dead"])) == ([], [], [0, 0])
    clock.pass_time()
    assert (done, broker.depth("shop.dead")) == (["done"], 1)
    handler.fail(unacked(first), failure)
    handler.postpone(unacked(first), "shop.send", Postpone(0.1, "not yet", code="host-busy"))
    handler.postpone(unacked(first), "shop.send", Postpone(float("nan"), "never"))
    broker.take("shop.dead")
    assert handler.end_at_delivery_limit(unacked(crashed), "shop.send")
    [letter] = broker.take("shop.dead")
    assert [letter.headers[name] for name in (REASON, TASK, WORKER)] == ["delivery-limit", "shop.send", "w"]
    handler.set_aside(unacked(first), deliveries=1)
    assert outcomes == [
        ("shop.send", "mail", "dead-lettered", "server-error"),
        ("shop.send", "mail", "retried", "server-error"),
        ("shop.send", "mail", "postponed", "host-busy"),
        ("shop.send", "mail", "dead-lettered", "invalid-message"),
        ("shop.send", "mail", "dead-lettered", "delivery-limit"),
    ]
    # A replay that waits has none yet.
    eventually(lambda: broker.depth("outcomes") == 4, "the operator has them")
    reports = [json.loads(report.body) for report in broker.take("outcomes")]
    assert [each["outcome"] for each in reports] == ["dead-lettered", "retried", "dead-lettered", "dead-lettered"]
    text = "its earlier deliveries crashed workers"
    assert reports[-1] == {"outcome": "dead-lettered", "text": text, "of": "1d6a"}
    logged = {each.getMessage(): each for each in caplog.records}
    for attempt, text in (
        (1, "Retry 1 of 1 of shop.send from mail in 0.1 s: KeyError: boom"),
        (2, "Dead-lettered shop.send from mail (server-error): KeyError: boom"),
    ):
        about = vars(logged[text])
        assert (about["task_id"], about["task"], about["attempt"]) == ("m-1", "shop.send", attempt)
