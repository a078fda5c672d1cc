"""A RabbitMQ that is low on memory: it takes no messages, and says why."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http import HTTPStatus
from pathlib import Path

import pytest
import requests
from celery.exceptions import OperationalError
from kombu import Queue, pools

from app import private_services as services
from app.broker.errors import PublishFailed, RequestTimedOut, Unroutable
from app.broker.outgoing import Outgoing
from app.broker.publishing import Publisher, get_publisher
from app.broker.rpc.requestor import Requestor
from app.broker.worker.producer import NotConfirmed
from config.settings import Settings
from tests.support.broker import Broker
from tests.support.command import as_process_with, invoked
from tests.support.corner import own_vhost
from tests.support.erlang import set_memory_limit
from tests.support.sender import TIMEOUT, application
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


class AlarmedBroker:
    """A running node, in its alarm from the beginning, with a vhost at `url`."""

    def __init__(self, settings: Settings, url: str) -> None:
        self.url = url
        self._settings = settings

    def raise_alarm(self) -> None:
        """Let the node take no more messages: no node stays below this limit of memory."""
        self._set_limit("1MB")

    def end_alarm(self) -> None:
        """Let the node take messages again."""
        self._set_limit("512MB")

    def _set_limit(self, limit: str) -> None:
        set_memory_limit(self._settings, limit)


@pytest.fixture(scope="module")
def alarmed(private_services: Settings) -> Iterator[AlarmedBroker]:
    urls = services.up(private_services)
    with own_vhost(urls) as url:
        broker = AlarmedBroker(private_services, url)
        try:
            broker.raise_alarm()
            alarms = f"{urls.broker_api_url}health/checks/local-alarms"
            eventually(
                lambda: requests.get(alarms, timeout=10).status_code == HTTPStatus.SERVICE_UNAVAILABLE, "its alarm"
            )
            yield broker
        finally:
            broker.end_alarm()


@pytest.fixture
def exhausted(alarmed: AlarmedBroker) -> str:
    """Return the URL of the broker in its alarm. The test that ends the alarm is the last one of this module."""
    return alarmed.url


@pytest.mark.slow
def test_a_broker_that_takes_no_messages_is_an_error_that_gives_its_reason(exhausted: str) -> None:
    publisher = Publisher(exhausted, timeout=2)

    def blocked() -> bool:
        # While it has not looked at its memory yet, it takes some; and always those without a body.
        try:
            publisher.publish([Outgoing(exchange="amq.fanout", routing_key="", body=b"body", mandatory=False)])
        except PublishFailed as error:
            return "the broker takes no messages, it is low on memory or disk" in str(error)
        return False

    eventually(blocked, "the broker blocks publishers")
    publisher.close()


def test_a_request_to_such_a_broker_fails_at_its_deadline_with_that_reason(exhausted: str) -> None:
    requestor = Requestor(exhausted, timeout=2)

    def blocked() -> bool:
        try:
            requestor.request(Outgoing(exchange="amq.direct", routing_key="nobody", body=b"body"), deadline=0.2)
        except Unroutable:  # It has not looked at its memory yet.
            return False
        except RequestTimedOut:  # That request is what the broker took note of this connection by.
            return False
        except PublishFailed as error:
            return "the broker takes no messages, it is low on memory or disk" in str(error)
        raise AssertionError("a reply has come, but no responder runs")

    eventually(blocked, "requests fail for that reason")
    eventually(lambda: not requestor._thread._outbox, "what nobody waits for any more is not kept")
    requestor.close()
    # The blocked broker does not answer the close, so the socket is closed by garbage collection.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_a_client_gets_an_error_in_time_on_a_connection_that_an_earlier_message_has_blocked(exhausted: str) -> None:
    task = application(exhausted)
    task.apply_async(kwargs={"number": 1}, confirm=False)
    # From now on the broker does not read from the connection: it answers no request for a channel.
    began = time.monotonic()
    with pytest.raises(NotConfirmed):
        task.delay(number=2)
    with pytest.raises(NotConfirmed, match="no answer in 1 s"):
        task.delay(number=3)
    assert time.monotonic() - began < 30
    pools.reset()


def test_threads_that_send_in_an_alarm_do_not_wait_for_each_other(exhausted: str) -> None:
    senders = 20
    task = application(exhausted)
    task.app.conf.broker_pool_limit = 1
    began = time.monotonic()
    with ThreadPoolExecutor(senders) as pool:
        errors = [sent.exception() for sent in [pool.submit(task.delay) for _ in range(senders)]]
    assert all(isinstance(error, OperationalError) for error in errors)
    assert time.monotonic() - began < senders * TIMEOUT
    pools.reset()


def test_the_command_index_in_an_alarm_is_an_error_that_gives_the_reason(exhausted: str, tmp_path: Path) -> None:
    given = {"PERENNIAL_DATA_DIR": str(tmp_path), "BROKER_URL": exhausted}
    with (
        closing(get_publisher(exhausted, timeout=2)),
        as_process_with(given),
        pytest.raises(PublishFailed, match="low on memory or disk"),
    ):
        invoked("index", "https://site.example/")


def published(publisher: Publisher, messages: Sequence[Outgoing]) -> bool:
    with suppress(PublishFailed):
        publisher.publish(messages)
        return True
    return False


def test_what_an_alarm_holds_back_arrives_once_however_often_it_is_tried(alarmed: AlarmedBroker) -> None:
    alarmed.end_alarm()
    broker = Broker(alarmed.url)
    broker.bind_new("held")
    first, second = (
        [Outgoing(exchange="", routing_key="held", body=f"{number} {each}".encode()) for each in range(3)]
        for number in (1, 2)
    )
    publisher = Publisher(alarmed.url, timeout=2)
    alarmed.raise_alarm()
    for messages in (first, first, second, first, second):
        with pytest.raises(PublishFailed, match="low on memory"):
            publisher.publish(messages)
    with pytest.raises(PublishFailed, match="low on memory"):
        publisher.declare([Queue("another")])
    alarmed.end_alarm()
    # The callers may try again in any order.
    eventually(lambda: published(publisher, second), "the alarm is over")
    publisher.publish(first)
    publisher.close()
    assert sorted(message.body for message in broker.take("held")) == ["1 0", "1 1", "1 2", "2 0", "2 1", "2 2"]
