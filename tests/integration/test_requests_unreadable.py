"""Requests and replies with properties that RabbitMQ lets through and client libraries cannot read."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest
from kombu import Connection, Queue

from app.broker.delivery import Delivery
from app.broker.errors import BrokerUnreachable
from app.broker.rpc.queue_consumer import QueueConsumer
from app.broker.rpc.requestor import Reply, Requestor
from app.broker.rpc.responder import Responder
from tests.support import raw
from tests.support.answering import QUEUE, ByHand, ask
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

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
    assert requestor.connections == 2, "the unreadable reply came again"


@pytest.mark.parametrize("name", NO_TEXT)
def test_a_reply_with_bytes_that_are_not_utf_8_closes_no_connection(
    requestor: Requestor, taken: list[Delivery], by_hand: ByHand, name: str
) -> None:
    in_flight = requestor.send(ask(), deadline=60)
    eventually(lambda: taken, "the request arrived")
    by_hand.reply_with(taken[0], NO_TEXT[name])
    by_hand.reply(taken[0], b"yes")
    assert in_flight.result(30).body == b"yes"
    assert requestor.connections == 1


@pytest.mark.parametrize("name", [*UNREADABLE, *NO_TEXT])
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
