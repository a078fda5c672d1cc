"""Publishing to a real RabbitMQ: confirmed, routed or refused."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from kombu import Connection, Exchange, Queue

from app.broker.errors import PublishFailed, Unroutable
from app.broker.outgoing import Outgoing
from app.broker.policies.delays import QueueType
from app.broker.policies.x_death import XDeath
from app.broker.publishing import Publisher, get_publisher
from app.broker.worker.failures import Disposition, carry_out_one
from config.settings import Settings
from tests.support.broker import Broker
from tests.support.deliveries import FAILURE, delivery
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


#: In an AMQP 0-9-1 frame: its type, a method, and the start of the payload, class and method of `basic.ack`.
_METHOD, _BASIC_ACK = 1, struct.pack(">HH", 60, 80)
#: Bytes of a frame's header, and of its header and end.
_HEADER, _AROUND = 7, 8


class ConfirmLosingProxy(Proxy):
    """Loses the confirms of the first connections that get one. Heartbeats and other answers reach the client.

    After `bring_back`, the lost confirms come before the next answer.
    """

    def __init__(self, url: str, *, connections: int) -> None:
        """Lose the confirms of this number of connections. Those without a confirm do not count."""
        #: Confirms that were lost.
        self.lost = 0
        self._lost = b""
        self._brings_back = False
        self._connections = connections
        #: The buffers of connections that lost one.
        self._losing: list[bytearray] = []
        super().__init__(url)

    def bring_back(self) -> None:
        """Let the lost confirms be late ones, and lose no more."""
        self._brings_back = True

    def _filter(self) -> Callable[[bytes], bytes]:
        buffer = bytearray()

        def forwarded(data: bytes) -> bytes:
            buffer.extend(data)
            kept = bytearray()
            while len(buffer) >= _HEADER and len(buffer) >= (end := _AROUND + int.from_bytes(buffer[3:_HEADER])):
                frame, buffer[:end] = bytes(buffer[:end]), b""
                if frame[0] == _METHOD and frame[_HEADER:].startswith(_BASIC_ACK) and self._loses(buffer):
                    self.lost += 1
                    self._lost += frame
                else:
                    kept += frame
            if self._brings_back:
                kept[:0], self._lost = self._lost, b""
            return bytes(kept)

        return forwarded

    def _loses(self, buffer: bytearray) -> bool:
        if self._brings_back:
            return False
        is_losing = any(each is buffer for each in self._losing)
        if not is_losing and len(self._losing) < self._connections:
            self._losing.append(buffer)
            return True
        return is_losing


#: Bytes of the broker's confirm.
_ACK_FRAME = 21


@pytest.fixture
def publisher(settings: Settings) -> Iterator[Publisher]:
    publisher = Publisher(settings.broker)
    publisher.declare([Queue("q")])
    yield publisher
    publisher.close()


def message(number: int = 0, *, exchange: str = "") -> Outgoing:
    return Outgoing(exchange=exchange, routing_key="q", body=b"{}", headers={"number": number})


def test_what_threads_publish_together_fails_each_for_itself(
    publisher: Publisher, broker: Broker, settings: Settings
) -> None:
    with Connection(settings.broker) as connection:
        Exchange("lonely", type="direct")(connection.channel()).declare()

    def publish(number: int) -> str:
        unroutable = number % 5 == 0
        each = message(number, exchange="lonely" if unroutable else "")
        try:
            publisher.publish([each, message(number)])
        except Unroutable:
            return "returned"
        return "confirmed"

    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(publish, range(100)))
    assert outcomes == ["returned" if number % 5 == 0 else "confirmed" for number in range(100)]
    assert broker.depth("q") == 180


def test_of_many_messages_each_that_did_not_arrive_has_its_error_and_the_others_are_in_order_and_persistent(
    publisher: Publisher, broker: Broker, settings: Settings
) -> None:
    full = Queue(
        "full",
        exchange=Exchange("full", type="fanout"),
        queue_arguments={"x-max-length": 1, "x-overflow": "reject-publish"},
    )
    publisher.declare([full])
    with Connection(settings.broker) as connection:
        Exchange("lonely", type="direct")(connection.channel()).declare()
    publisher.publish([message(exchange="full")])
    messages = [message(number) for number in range(1_200)]
    messages[3] = messages[600] = message(exchange="lonely")
    messages[5] = message(2**64)
    messages[7] = message(exchange="full")
    failures = publisher.publish_each(messages)
    assert "no queue is bound for exchange 'lonely' with key 'q'" in str(failures[3])
    assert "refused" in str(failures[7])
    assert {position: type(error) for position, error in failures.items()} == {
        3: Unroutable,
        5: struct.error,
        7: PublishFailed,
        600: Unroutable,
    }
    # A second attempt with the same objects sends only those.
    assert publisher.publish_each(messages).keys() == failures.keys()
    taken = broker.take("q")
    assert [each.headers["number"] for each in taken] == [each for each in range(1_200) if each not in failures]
    assert {(each.properties["delivery_mode"], len(each.properties["message_id"])) for each in taken} == {(2, 36)}


def opened(proxy: Proxy, *, timeout: float, **options: Any) -> Publisher:
    """Return a publisher with an open connection, which waits for each answer for `timeout` seconds from now on."""
    publisher = Publisher(proxy.url, timeout=60, **options)
    assert not publisher.declare_if_missing(Queue("q"))
    publisher._timeout = timeout
    return publisher


def test_a_message_whose_confirm_is_late_is_not_sent_again(broker_url: str, broker: Broker) -> None:
    broker.bind_new("q")
    batch = [Outgoing(exchange="", routing_key="q", body=str(number).encode()) for number in range(10)]
    with closing(ConfirmLosingProxy(broker_url, connections=1)) as proxy:
        publisher = opened(proxy, timeout=1)
        for _ in range(3):
            with pytest.raises(PublishFailed, match="not confirmed"):
                publisher.publish(batch)
        proxy.bring_back()
        eventually(lambda: not publisher.publish_each(batch), "the late confirms are noted")
        publisher.close()
    assert proxy.lost
    assert proxy.tried == 1
    assert [each.body for each in broker.take("q")] == [str(number) for number in range(10)]


def test_a_message_whose_confirm_is_lost_on_a_connection_that_works_is_sent_once_more_after_ever_longer_waits(
    broker_url: str, broker: Broker
) -> None:
    broker.bind_new("q")
    with closing(ConfirmLosingProxy(broker_url, connections=3)) as proxy:
        publisher = opened(proxy, timeout=0.3, confirm_limit=0.6)
        lost = [Outgoing(exchange="", routing_key="q", body=b"lost")]
        began = time.monotonic()
        eventually(lambda: not publisher.publish_each(lost), "the message is confirmed")
        took = time.monotonic() - began
        publisher.publish([Outgoing(exchange="", routing_key="q", body=b"next")])
        publisher.close()
    assert took > 0.6 + 1.2 + 2.4
    assert (proxy.lost, proxy.tried) == (3, 4)
    assert [each.body for each in broker.take("q")] == ["lost"] * 4 + ["next"]


def test_after_a_lost_connection_only_what_was_not_confirmed_is_sent_again(broker_url: str, broker: Broker) -> None:
    broker.bind_new("mail")
    proxy = Proxy(broker_url)
    publisher = Publisher(proxy.url)
    publisher.publish([Outgoing(exchange="", routing_key="mail", body=b"first")])
    proxy.hold(after=_ACK_FRAME)

    def cut_after_the_first_confirm() -> None:
        eventually(proxy.is_holding, "one confirm has arrived")
        proxy.cut()
        proxy.let_go()

    cutting = threading.Thread(target=cut_after_the_first_confirm)
    cutting.start()
    batch = [Outgoing(exchange="", routing_key="mail", body=str(number).encode()) for number in range(10)]
    publisher.publish(batch)
    cutting.join()
    publisher.close()
    proxy.close()
    bodies = Counter(str(each.body) for each in broker.take("mail"))
    assert bodies.keys() == {"first", *(str(number) for number in range(10))}
    assert bodies["0"] == 1
    assert max(bodies.values()) <= 2


def test_a_broker_that_is_not_there_raises_and_names_the_reason() -> None:
    with pytest.raises(PublishFailed, match="refused"):
        Publisher("amqp://127.0.0.1:1//", timeout=1).publish([message()])


def test_a_forked_child_gets_a_publisher_of_its_own() -> None:
    ours = get_publisher("amqp://127.0.0.1:1//")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"same" if get_publisher("amqp://127.0.0.1:1//") is ours else b"own")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"own"


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_a_retry_queue_that_somebody_deleted_is_declared_anew_before_a_message_is_rejected(
    publisher: Publisher, broker: Broker, settings: Settings, queue_type: QueueType
) -> None:
    policy = XDeath("orders", retry_after_ms=100, queue_type=queue_type)
    with Connection(settings.broker) as connection, connection.channel() as channel:
        for queue in policy.queues():
            queue(channel).declare()
        broker.post(b"first", exchange="", key="orders")
        channel.queue_delete("orders.retry")
        failed = delivery("orders")
        decision = policy.decide(failed, FAILURE)
        assert carry_out_one(decision, failed, publisher=publisher) is Disposition.REJECT
        came = eventually(lambda: channel.basic_get("orders"), "it is there")
        channel.basic_reject(came.delivery_info["delivery_tag"], requeue=False)
        back = eventually(lambda: channel.basic_get("orders"), "it is back", seconds=10)
    assert back.body == b"first"
    assert carry_out_one(decision, failed, publisher=publisher) is Disposition.REJECT
