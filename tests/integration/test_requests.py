"""Requests and replies on a real broker: each is answered, refused, returned or timed out, also if it is unreadable."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Exchange, Queue
from pika.channel import Channel

from app.broker.connection import connected
from app.broker.delivery import Delivery
from app.broker.errors import (
    BrokerUnreachable,
    Overloaded,
    PublishFailed,
    RequestTimedOut,
    Undecodable,
    UnknownType,
    Unroutable,
)
from app.broker.outgoing import Outgoing
from app.broker.publishing import Publisher
from app.broker.rpc.queue_consumer import QueueConsumer
from app.broker.rpc.requestor import Reply, Requestor
from app.broker.rpc.responder import Responder
from tests.support import raw
from tests.support.answering import QUEUE, ByHand, ask, consumed
from tests.support.broker import Broker
from tests.support.proxy import Proxy
from tests.support.tls import Encrypted
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


def problem(error: Exception) -> bytes:
    return f"{type(error).__name__}: {error}".encode()


def echo(delivery: Delivery, _payload: dict[str, Any]) -> bytes:
    return delivery.body


def reply_to(delivery: Delivery, _payload: dict[str, Any]) -> bytes:
    """Return the name of the requestor's reply queue: each connection has another one."""
    return str(delivery.properties["reply_to"]).encode()


#: The request for that name.
REPLY_TO = b'{"type": "reply_to"}'


def test_the_error_of_a_closed_connection_names_all_nodes_without_passwords() -> None:
    requestor = Requestor("amqps://user:secret@one.example//;amqp://user:secret@two.example//")
    requestor.close()
    error = requestor.send(Outgoing(exchange="", routing_key=QUEUE, body=b"{}"), deadline=1.0).exception()
    nodes = "amqps://user:**@one.example//;amqp://user:**@two.example//"
    assert str(error) == f"broker {nodes}: this connection was closed"


@pytest.fixture
def echoing(broker_url: str) -> Iterator[Responder]:
    responder = Responder(broker_url, {"echo": echo, "reply_to": reply_to}, problem=problem, threads=2, backlog=5_000)
    with consumed(broker_url, responder.take):
        yield responder
    responder.close()


@pytest.fixture
def proxy(broker_url: str) -> Iterator[Proxy]:
    proxy = Proxy(broker_url)
    yield proxy
    proxy.close()


def failure(future: Future[Reply]) -> str:
    """Return what a future failed with."""
    error = future.exception(timeout=60)
    assert error is not None
    return f"{type(error).__name__}: {error}"


class TestRequest:
    def test_a_request_has_its_reply_address_and_expiration_and_is_transient(
        self, requestor: Requestor, taken: list[Delivery], broker_url: str
    ) -> None:
        first, second = requestor.send(ask(app_id="me"), deadline=30), requestor.send(ask(), deadline=30)
        eventually(lambda: len(taken) == 2, "both came")
        one, two = (delivery.properties for delivery in taken)
        assert one["reply_to"] == two["reply_to"]
        assert one["reply_to"].startswith("amq.gen-")
        assert one["correlation_id"] != two["correlation_id"]
        assert 0 < int(one["expiration"]) <= 30_000
        assert (one["delivery_mode"], one["app_id"]) == (1, "me")
        assert not first.done()
        assert not second.done()
        # No other connection can declare it, and it is deleted with its connection.
        with Connection(broker_url) as other, pytest.raises(Exception, match="RESOURCE_LOCKED"):
            other.channel().queue_declare(one["reply_to"], passive=True)
        requestor.close()
        assert "closed" in failure(first)
        with Connection(broker_url) as other, pytest.raises(Exception, match="NOT_FOUND"):
            other.channel().queue_declare(one["reply_to"], passive=True)


class TestNoReply:
    def test_a_reply_that_is_late_or_comes_again_is_dropped(
        self, requestor: Requestor, taken: list[Delivery], by_hand: ByHand
    ) -> None:
        # The connection is open before a deadline is short; the broker drops a request that has not come by then.
        opening = requestor.send(ask(), deadline=60)
        eventually(lambda: taken, "the first request arrived")
        by_hand.reply(taken[0], b"open")
        assert opening.result(60).body == b"open"
        late = requestor.send(ask(), deadline=2)
        eventually(lambda: len(taken) == 2, "it came")
        assert failure(late) == "RequestTimedOut: exchange '' with key 'answers': no reply within 2 s"
        by_hand.reply(taken[1], b"too late")
        prompt = requestor.send(ask(), deadline=60)
        eventually(lambda: len(taken) == 3, "the next came")
        by_hand.reply(taken[2], b"first")
        by_hand.reply(taken[2], b"second")
        assert prompt.result(60).body == b"first"
        last = requestor.send(ask(), deadline=60)
        eventually(lambda: len(taken) == 4, "the last request arrived")
        by_hand.reply(taken[3], b"last")
        assert last.result(60).body == b"last"
        assert (len(requestor._calls), len({each.properties["reply_to"] for each in taken})) == (0, 1)

    def test_a_cancelled_request_is_forgotten(
        self, requestor: Requestor, taken: list[Delivery], by_hand: ByHand
    ) -> None:
        future = requestor.send(ask(), deadline=60)
        eventually(lambda: taken, "it came")
        assert future.cancel()
        by_hand.reply(taken[0], b"to nobody")
        eventually(lambda: len(requestor._calls) == 0, "it is settled")

    def test_a_request_that_cannot_be_encoded_fails_alone(self, requestor: Requestor, echoing: Responder) -> None:
        pending = requestor.send(ask(b'{"type": "echo", "n": 1}'), deadline=30)
        with pytest.raises(PublishFailed, match="it cannot be sent"):
            requestor.request(Outgoing(exchange="", routing_key="k" * 300, body=b""), deadline=30)
        assert pending.result(30).body == b'{"type": "echo", "n": 1}'


class TestConnection:
    def test_when_the_reply_queue_is_deleted_requests_in_flight_fail_and_the_next_one_is_answered(
        self, broker_url: str, taken: list[Delivery]
    ) -> None:
        channels: list[Channel] = []

        class Watched(Requestor):
            def opened(self, channel: Channel, ready: Callable[[], None]) -> None:
                channels.append(channel)
                super().opened(channel, ready)

        with closing(Watched(broker_url)) as requestor:
            lost = requestor.send(ask(), deadline=60)
            [request] = eventually(lambda: list(taken), "the request came")
            # Only its own connection may delete an exclusive queue, and so may the broker.
            delete = partial(channels[0].queue_delete, request.properties["reply_to"])
            channels[0].connection.ioloop.add_callback_threadsafe(delete)
            assert "BrokerUnreachable" in failure(lost)
            answered = requestor.send(ask(b"again"), deadline=60)
            eventually(lambda: len(taken) == 2, "the next request came")
            with closing(Responder(broker_url, {}, problem=problem)) as responder:
                responder.reply(taken[1], b"yes")
                assert answered.result(60).body == b"yes"

    def test_without_a_connection_requests_fail_at_their_deadline_and_attempts_are_spaced_out(
        self, proxy: Proxy, echoing: Responder
    ) -> None:
        requestor = Requestor(proxy.url)
        assert requestor.request(ask(), deadline=60).body == b'{"type": "echo"}'
        before = proxy.tried
        proxy.cut(reopen=False)
        # A request that is sent before the requestor notices the cut fails at once, without another connection.
        assert failure(requestor.send(ask(), deadline=0.3)).startswith("BrokerUnreachable")
        futures = [requestor.send(ask(), deadline=1.2) for _ in range(100)]
        assert {failure(future).split(":")[0] for future in futures} == {"BrokerUnreachable"}
        assert 1 <= proxy.tried - before <= 8
        assert len(requestor._calls) == 0
        proxy.reopen()
        assert requestor.request(ask(), deadline=60).body == b'{"type": "echo"}'
        requestor.close()

    def test_a_missing_exchange_fails_one_request_and_one_without_a_queue_returns_it(
        self, broker_url: str, echoing: Responder
    ) -> None:
        nowhere = Outgoing(exchange="perennial.requests", routing_key="echo", body=b"{}")
        requestor = Requestor(broker_url)
        with pytest.raises(BrokerUnreachable, match=r"no exchange 'perennial\.requests'"):
            requestor.request(nowhere, deadline=30)
        assert requestor.request(ask(), deadline=30).body == b'{"type": "echo"}'
        requestor.close()
        declaring = Requestor(broker_url, exchanges=[Exchange("perennial.requests", type="direct", durable=True)])
        with pytest.raises(Unroutable, match=r"bound for exchange 'perennial\.requests' with key 'echo'"):
            declaring.request(nowhere, deadline=10_000)
        assert declaring.request(ask(), deadline=30).body == b'{"type": "echo"}'
        declaring.close()

    def test_heartbeats_keep_an_idle_connection_open(self, broker_url: str, echoing: Responder) -> None:
        requestor = Requestor(broker_url, heartbeat=1.0)
        first = requestor.request(ask(REPLY_TO), deadline=30)
        threading.Event().wait(3.5)  # RabbitMQ closes a connection that says nothing for two heartbeats.
        assert requestor.request(ask(REPLY_TO), deadline=30).body == first.body
        requestor.close()


class TestResponder:
    @pytest.mark.parametrize("threads", [0, 2])
    def test_an_invalid_request_gets_a_problem_reply_and_the_next_one_is_answered(
        self, requestor: Requestor, broker_url: str, threads: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(_delivery: Delivery, _payload: dict[str, Any]) -> bytes:
            raise KeyError("no such shelf")

        responder = Responder(broker_url, {"echo": echo, "fail": fail}, problem=problem, threads=threads)
        said = {}
        with consumed(broker_url, responder.take), caplog.at_level(logging.WARNING):
            for body in (b"\xff", b"", b"[1]", b'{"type": "shout"}', b'{"type": []}', b"{}", b'{"type": "fail"}'):
                said[body] = requestor.request(ask(body), deadline=30).body.decode()
            assert requestor.request(ask(), deadline=30).body == b'{"type": "echo"}'
        responder.close()
        kinds = [text.split(":")[0] for text in said.values()]
        assert kinds == [Undecodable.__name__] * 3 + [UnknownType.__name__] * 3 + ["KeyError"]
        assert "expected one of echo, fail" in said[b"{}"]
        assert [record.levelname for record in caplog.records] == ["WARNING"] * 6 + ["ERROR"]

    def test_a_request_without_reply_to_is_handled_and_gets_no_reply(self, broker_url: str) -> None:
        seen: list[bytes] = []

        def note(delivery: Delivery, _payload: dict[str, Any]) -> bytes:
            seen.append(delivery.body)
            return b"an answer"

        responder = Responder(broker_url, {"note": note}, problem=problem)
        with consumed(broker_url, responder.take):
            Broker(broker_url).post(b'{"type": "note"}', exchange="", key=QUEUE, correlation_id="c")
            Broker(broker_url).post(b"garbage", exchange="", key=QUEUE)
            Broker(broker_url).post(b'{"type": "note", "n": 2}', exchange="", key=QUEUE)
            eventually(lambda: len(seen) == 2, "both were worked on")
        assert responder._thread._channel is None
        responder.close()

    def test_a_responder_with_a_full_backlog_refuses_at_once_and_drops_expired_requests(
        self, requestor: Requestor, broker_url: str
    ) -> None:
        go, begun = threading.Event(), []

        def wait(_delivery: Delivery, payload: dict[str, Any]) -> bytes:
            begun.append(payload["n"])
            go.wait(60)
            return b"done"

        responder = Responder(broker_url, {"wait": wait}, problem=problem, threads=1, backlog=2)
        with consumed(broker_url, responder.take):
            running = requestor.send(ask(b'{"type": "wait", "n": 1}'), deadline=60)
            eventually(lambda: begun == [1], "the first is under way")
            short = requestor.send(ask(b'{"type": "wait", "n": 2}'), deadline=2)
            patient = requestor.send(ask(b'{"type": "wait", "n": 3}'), deadline=60)
            eventually(lambda: responder._waiting == 2, "two wait")
            arrived = time.monotonic()
            refused = requestor.request(ask(b'{"type": "wait", "n": 4}'), deadline=60)
            assert refused.body.startswith(Overloaded.__name__.encode())
            assert isinstance(short.exception(60), RequestTimedOut)
            eventually(lambda: time.monotonic() > arrived + 2, "nobody waits for the second any more")
            go.set()
            assert running.result(60).body == patient.result(60).body == b"done"
        assert begun == [1, 3]
        responder.close()

    def test_a_closing_responder_finishes_running_requests_and_refuses_others(
        self, requestor: Requestor, broker_url: str
    ) -> None:
        go, begun = threading.Event(), threading.Event()

        def wait(_delivery: Delivery, _payload: dict[str, Any]) -> bytes:
            begun.set()
            go.wait(60)
            return b"done"

        responder = Responder(broker_url, {"wait": wait}, problem=problem, threads=1)
        with consumed(broker_url, responder.take):
            running, waiting = (requestor.send(ask(b'{"type": "wait"}'), deadline=60) for _ in range(2))
            eventually(lambda: begun.is_set() and responder._waiting == 1, "one is under way, and one waits")
            closing = threading.Thread(target=responder.close, args=(60.0,))
            closing.start()
            eventually(lambda: responder.closing, "it closes")
            refused = requestor.send(ask(b'{"type": "wait"}'), deadline=60)
            assert refused.result(60).body.startswith(b"Overloaded")
            go.set()
            assert running.result(60).body == waiting.result(60).body == b"done"
            closing.join(60)
        assert not closing.is_alive()

    def test_an_invalid_reply_address_stops_no_other_request(
        self, requestor: Requestor, echoing: Responder, broker_url: str
    ) -> None:
        broker = Broker(broker_url)
        broker.post(b'{"type": "echo"}', exchange="", key=QUEUE, reply_to="nobody", correlation_id="c" * 255)
        broker.post(b'{"type": "echo"}', exchange="", key=QUEUE, reply_to="amq.rabbitmq.reply-to.gone")
        assert requestor.request(ask(), deadline=30).body == b'{"type": "echo"}'


class TestForward:
    def test_a_forwarded_request_is_answered_to_its_requester_and_one_to_a_missing_queue_is_returned(
        self, requestor: Requestor, broker_url: str
    ) -> None:
        seen: list[Delivery] = []
        holder = Responder(broker_url, {"echo": echo}, problem=problem)

        def take(delivery: Delivery) -> None:
            seen.append(delivery)
            holder.take(delivery)

        def returned(queue: str, delivery: Delivery) -> None:
            front.reply(delivery, f"{queue} is gone: {delivery.body.decode()}".encode())

        handlers: dict[str, Callable[[Delivery, dict[str, Any]], None]] = {
            "echo": lambda delivery, _: front.forward(delivery, "holder"),
            "lost": lambda delivery, _: front.forward(delivery, "site.searcher.gone"),
        }
        front = Responder(broker_url, handlers, problem=problem, returned=returned)
        with consumed(broker_url, front.take), consumed(broker_url, take, queue="holder"):
            message = Outgoing(exchange="", routing_key=QUEUE, body=b'{"type": "echo"}', headers={"trace": "t"})
            assert requestor.request(message, deadline=30).body == b'{"type": "echo"}'
            reply = requestor.request(ask(b'{"type": "lost"}'), deadline=30)
            assert reply.body == b'site.searcher.gone is gone: {"type": "lost"}'
        [delivery] = seen
        assert 0 < int(delivery.properties["expiration"]) <= 30_000
        assert delivery.headers["trace"] == "t"
        holder.close()
        front.close()


class TestEncrypted:
    @pytest.fixture
    def encrypted(self, broker_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Encrypted]:
        encrypted = Encrypted(broker_url, tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", str(encrypted.authority))
        yield encrypted
        encrypted.close()

    def test_replies_of_any_length_come_whole_to_many_threads(self, encrypted: Encrypted, broker_url: str) -> None:
        responder = Responder(encrypted.url, {"echo": echo, "reply_to": reply_to}, problem=problem, threads=4)
        requestor = Requestor(encrypted.url)

        def is_answered(length: int) -> bool:
            body = json.dumps({"type": "echo", "text": "x" * length}).encode()
            return requestor.request(ask(body), deadline=60).body == body

        with consumed(broker_url, responder.take), ThreadPoolExecutor(8) as pool:
            first = requestor.request(ask(REPLY_TO), deadline=60)
            assert all(pool.map(is_answered, [0, 100, 16_000, 17_000, 64_000, 131_000, 300_000] * 10))
            assert is_answered(5_000_000)
            assert requestor.request(ask(REPLY_TO), deadline=60).body == first.body
        requestor.close()
        responder.close()

    def test_deadlines_pass_after_half_an_encrypted_frame_and_a_cut_connection_is_opened_again(
        self, encrypted: Encrypted, echoing: Responder
    ) -> None:
        proxy = Proxy(encrypted.url)
        requestor = Requestor(proxy.url, timeout=60)
        first = requestor.request(ask(REPLY_TO), deadline=60)
        long = json.dumps({"type": "echo", "text": "x" * 300_000}).encode()
        proxy.hold(after=50_000)
        slow = requestor.send(ask(long), deadline=60)
        # The responder has two threads: sent at once, the other request could be replied to first.
        eventually(proxy.is_holding, "the reply's beginning has arrived")
        assert failure(requestor.send(ask(), deadline=0.5)).startswith("RequestTimedOut")
        proxy.let_go()
        assert slow.result(60).body == long
        # The reply to the other request is late: it precedes this one on the connection.
        reply = requestor.request(ask(REPLY_TO), deadline=60)
        assert (reply.body, reply.properties["delivery_mode"]) == (first.body, 1)
        proxy.hold(after=50_000)
        broken = requestor.send(ask(long), deadline=60)
        eventually(proxy.is_holding, "half of it came")
        proxy.cut()
        proxy.let_go()
        assert failure(broken).startswith("BrokerUnreachable")
        assert requestor.request(ask(), deadline=60).body == b'{"type": "echo"}'
        requestor.close()
        proxy.close()

    def test_a_broker_with_the_certificate_of_another_host_is_refused(
        self, broker_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = Encrypted(broker_url, tmp_path, host="other.example")
        monkeypatch.setenv("SSL_CERT_FILE", str(other.authority))
        mismatch = "certificate is not valid for '127.0.0.1'"
        requestor, publisher = Requestor(other.url), Publisher(other.url)
        assert mismatch in failure(requestor.send(ask(), deadline=3))
        with pytest.raises(PublishFailed, match=mismatch):
            publisher.publish([ask()])
        with pytest.raises(BrokerUnreachable, match=mismatch), connected(other.url):
            pass
        requestor.close()
        publisher.close()
        other.close()


#: Headers that pika cannot decode: it closes the connection that they come by.
UNREADABLE = {
    "a date after the year 9999": raw.headers(raw.field(b"when", raw.timestamp(2**62))),
    "tables nested by the thousand": raw.headers(raw.field(b"deep", raw.nested(3_000))),
}
#: Properties with bytes that are not UTF-8, which pika hands over as bytes.
NO_TEXT = {
    "a content type": raw.text_property(0x8000, b"\xff"),
    "a correlation id": raw.text_property(0x0400, b"\xff"),
    "a header": raw.headers(raw.field(b"\xff", raw.text(b"\xff"))),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_reply_fails_the_requests_in_flight_and_the_next_request_is_answered(
    requestor: Requestor, taken: list[Delivery], by_hand: ByHand, name: str
) -> None:
    in_flight: list[Future[Reply]] = [requestor.send(ask(), deadline=60) for _ in range(3)]
    eventually(lambda: len(taken) == 3, "all requests arrived")
    by_hand.reply_with(taken[0], UNREADABLE[name])
    assert [type(future.exception(30)) for future in in_flight] == [BrokerUnreachable] * 3
    following = requestor.send(ask(), deadline=60)
    eventually(lambda: len(taken) == 4, "the next request arrived")
    by_hand.reply(taken[3], b"yes")
    assert following.result(30).body == b"yes"


@pytest.mark.parametrize("name", NO_TEXT)
def test_a_reply_with_bytes_that_are_not_utf_8_closes_no_connection(
    requestor: Requestor, taken: list[Delivery], by_hand: ByHand, name: str
) -> None:
    in_flight = requestor.send(ask(), deadline=60)
    eventually(lambda: taken, "the request arrived")
    by_hand.reply_with(taken[0], NO_TEXT[name])
    by_hand.reply(taken[0], b"yes")
    assert in_flight.result(30).body == b"yes"


# Two of five: tests/unit/test_amqp_internals.py reads the others.
@pytest.mark.parametrize("name", ["tables nested by the thousand", "a header"])
def test_an_unreadable_request_is_handled_once_and_stops_no_other(
    requestor: Requestor, broker_url: str, name: str
) -> None:
    handled: list[int] = []
    connections: list[bool] = []
    stopping = threading.Event()

    def handle(_delivery: Delivery, payload: dict[str, Any]) -> bytes:
        handled.append(payload["n"])
        return b"done"

    responder = Responder(broker_url, {"do": handle}, problem=lambda error: repr(error).encode())
    consumer = QueueConsumer(
        broker_url,
        Queue(QUEUE, auto_delete=True),
        declare=lambda _channel: None,
        on_delivery=responder.take,
        on_connected=lambda: connections.append(True),
    )
    thread = threading.Thread(target=consumer.run, args=(stopping.is_set,))
    thread.start()
    eventually(lambda: connections, "the queue is consumed from")
    with Connection(broker_url) as connection:
        message = raw.Raw(b'{"type": "do", "n": 1}', {**UNREADABLE, **NO_TEXT}[name])
        connection.channel().basic_publish(message, exchange="", routing_key=QUEUE)
        assert requestor.request(ask(b'{"type": "do", "n": 2}'), deadline=30).body == b"done"
    stopping.set()
    thread.join(30)
    consumer.close()
    responder.close()
    assert handled == [1, 2]
    assert connections == [True]
