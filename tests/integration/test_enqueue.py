"""Sending tasks to a real RabbitMQ: confirmed or not, routed or not, from threads, from forked children."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import billiard
import pytest
from celery import signals
from celery.exceptions import OperationalError, QueueNotFound
from kombu import Connection, pools

from app.broker.errors import PublishFailed
from app.broker.policies.delay_queues import DelayQueues
from app.broker.publishing import Publisher
from app.broker.worker.producer import NotConfirmed
from app.errors import InvalidUrl
from config.settings import Settings
from tasks.site import index, index_and_crawl
from tests.support.broker import Broker
from tests.support.proxy import Proxy
from tests.support.sender import TIMEOUT, application
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

#: Seconds to wait for a broker that is silent, and then answers.
PATIENCE = 3.0


@pytest.fixture
def task(broker_url: str) -> Iterator[Any]:
    yield application(broker_url)
    pools.reset()


@pytest.fixture
def proxy(broker_url: str) -> Iterator[Proxy]:
    proxy = Proxy(broker_url)
    yield proxy
    pools.reset()
    proxy.close()


def delete(broker_url: str, queue: str) -> None:
    with Connection(broker_url) as connection:
        connection.channel().queue_delete(queue)


def numbers(broker: Broker, queue: str = "mail") -> list[int]:
    return [message.decode()[1]["number"] for message in broker.take(queue)]


@pytest.mark.parametrize("confirm", [True, False])
def test_a_message_arrives_with_its_budget_and_celerys_signals_tell_of_it(
    task: Any, broker: Broker, confirm: bool
) -> None:
    published: list[tuple[str, Any]] = []

    def before(headers: dict[str, Any], **_: Any) -> None:
        headers["shelf"] = "9"
        published.append(("before", dict(headers)))

    def after(headers: dict[str, Any], **_: Any) -> None:
        published.append(("after", headers))

    signals.before_task_publish.connect(before)
    signals.after_task_publish.connect(after)
    sent = task.apply_async(kwargs={"number": 7}, confirm=confirm, retry_max=1)
    eventually(lambda: broker.depth("mail") == 1, "it is there")
    [message] = broker.take("mail")
    assert (message.headers["id"], message.decode()[1]) == (sent.id, {"number": 7})
    assert {name: message.headers[name] for name in ("retry-timeout-ms", "retry-max", "current-iteration")} == {
        "retry-timeout-ms": 250,
        "retry-max": 1,
        "current-iteration": 0,
    }
    assert (message.properties["delivery_mode"], message.headers["shelf"]) == (2, "9")
    assert [(when, headers["retry-max"]) for when, headers in published] == [("before", 1), ("after", 1)]


def test_by_default_a_client_waits_for_the_broker_and_the_application_may_say_otherwise_but_for_a_task(
    broker_url: str,
) -> None:
    task = application(broker_url)
    task.delay()
    delete(broker_url, "mail")
    with pytest.raises(NotConfirmed):
        task.delay()
    pools.reset()
    task = application(broker_url, confirm=False)

    def send_from_a_task() -> None:
        task.apply_async(confirm=False)

    task.delay()
    delete(broker_url, "mail")
    assert task.delay().id
    with pytest.raises(NotConfirmed):
        task.app.task(name="post.outer")(send_from_a_task).apply(throw=True)
    pools.reset()


def test_a_message_that_no_queue_or_exchange_takes_is_an_error_at_the_call_and_the_next_one_goes_through(
    task: Any, broker: Broker, broker_url: str
) -> None:
    task.delay(number=1)
    delete(broker_url, "mail")
    with pytest.raises(NotConfirmed, match=r"post\.send\[.*no queue is bound: exchange '' with key 'mail'") as raised:
        task.delay(number=2)
    assert isinstance(raised.value, PublishFailed)
    assert isinstance(raised.value, OperationalError)
    with pytest.raises(NotConfirmed, match="no exchange 'nothing'"):
        task.apply_async(exchange="nothing", routing_key="nowhere")
    task.delay(number=3)
    assert numbers(broker) == [3]


def test_a_message_that_the_broker_refuses_is_an_error_and_is_tried_again_as_celerys_publish_policy_says(
    task: Any, broker: Broker
) -> None:
    task.apply_async(kwargs={"number": 1}, queue="full")
    with pytest.raises(NotConfirmed, match="refused it: exchange '' with key 'full'"):
        task.apply_async(kwargs={"number": 2}, queue="full", retry=False)
    refused: list[Exception] = []

    def make_room(error: Exception, _interval: float) -> None:
        refused.append(error)
        broker.take("full")

    policy = {"max_retries": 3, "interval_start": 0, "interval_step": 0, "interval_max": 0, "errback": make_room}
    task.apply_async(kwargs={"number": 3}, queue="full", retry_policy=policy)
    assert len(refused) == 1
    assert numbers(broker, "full") == [3]
    task.apply_async(kwargs={"number": 4}, queue="full")


def test_a_broker_that_stops_answering_is_an_error_after_the_time_out_and_its_late_answer_is_of_no_other_message(
    proxy: Proxy, broker: Broker
) -> None:
    task = application(proxy.url, timeout=PATIENCE)
    with task.app.producer_pool.acquire() as producer:  # For all messages, as that of beat.
        task.apply_async(kwargs={"number": 1}, producer=producer)
        task.apply_async(kwargs={"number": 1}, producer=producer, queue="full")
        proxy.hold()
        began = time.monotonic()
        with pytest.raises(NotConfirmed, match="no answer in 3 s: exchange '' with key 'mail'"):
            task.apply_async(kwargs={"number": 2}, producer=producer)
        assert time.monotonic() - began >= PATIENCE
        proxy.let_go()
        with pytest.raises(NotConfirmed, match="refused"):
            task.apply_async(kwargs={"number": 3}, producer=producer, queue="full", retry=False)
    # The second one was never confirmed, and is there: duplicates are possible, loss is not.
    assert numbers(broker) == [1, 2]


def test_a_queue_that_a_silent_broker_does_not_declare_is_an_error_and_no_worker_waits_for_it(proxy: Proxy) -> None:
    first, second = DelayQueues("silent", queue_type="classic").queues()[:2]
    publisher = Publisher(proxy.url, timeout=PATIENCE)
    publisher.declare([first])
    proxy.hold()
    with pytest.raises(PublishFailed, match="queue not declared"):
        publisher.declare([second])
    proxy.let_go()
    publisher.declare([second])
    publisher.close()


@pytest.mark.parametrize("confirm", [True, False])
@pytest.mark.parametrize(("listens", "error"), [(False, "refused"), (True, "timed out")])
def test_a_server_that_does_not_run_or_is_silent_is_an_error_by_celerys_own_publish_policy(
    confirm: bool, listens: bool, error: str
) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        url = f"amqp://guest:guest@127.0.0.1:{server.getsockname()[1]}//"
        task = application(url, confirm=confirm, timeout=TIMEOUT)
        with pytest.raises(OperationalError, match=error):
            task.delay()
        pools.reset()


def test_a_connection_that_died_while_idle_is_replaced_without_a_word(proxy: Proxy, broker: Broker) -> None:
    task = application(proxy.url)
    task.delay(number=1)
    with task.app.producer_pool.acquire() as producer:
        producer.connection.connection.transport.sock.shutdown(socket.SHUT_RDWR)
    task.delay(number=2)
    assert numbers(broker) == [1, 2]


def test_many_threads_send_at_once_with_and_without_confirm(task: Any, broker: Broker) -> None:
    task.delay(number=-1)
    with ThreadPoolExecutor(16) as pool:
        sent = [
            pool.submit(task.apply_async, kwargs={"number": number}, confirm=number % 2 == 0) for number in range(200)
        ]
        ids = {each.result(timeout=60).id for each in sent}
    eventually(lambda: broker.depth("mail") == 201, "all are there")
    arrived = broker.take("mail")
    assert {message.headers["id"] for message in arrived} >= ids
    assert sorted(message.decode()[1]["number"] for message in arrived) == list(range(-1, 200))


def wire(task: Any) -> Any:
    """Return the connection to the broker that the next send will use."""
    with task.app.producer_pool.acquire() as producer:
        return producer.connection.connection


@pytest.mark.parametrize(("kind", "confirm"), [("os.fork", True), ("billiard", False)])
def test_a_forked_child_has_a_connection_of_its_own_and_leaves_its_parents_alone(
    task: Any, broker: Broker, kind: str, confirm: bool
) -> None:
    def send(number: int) -> None:
        task.apply_async(kwargs={"number": number}, confirm=confirm)

    send(1)
    before = wire(task)
    if kind == "os.fork":
        pid = os.fork()
        if pid == 0:
            send(2)
            own = wire(task) is not before
            pools.reset()
            os._exit(0 if own else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    else:
        child = billiard.get_context("fork").Process(target=send, args=(2,))
        child.start()
        child.join()
        assert child.exitcode == 0
    send(3)
    assert wire(task) is before
    eventually(lambda: broker.depth("mail") == 3, "all are there")
    assert numbers(broker) == [1, 2, 3]


def test_a_page_is_checked_and_normalised_at_the_call_and_an_unknown_queue_refused(
    declared: Settings, broker: Broker
) -> None:
    with Connection(declared.broker) as connection:
        with pytest.raises(InvalidUrl, match=r"URL 'ftp://site\.gov/'"):
            index_and_crawl.apply_async(("ftp://site.gov/",), connection=connection)
        with pytest.raises(QueueNotFound, match=r"site\.indx"):
            index.apply_async(("https://site.gov/",), connection=connection, queue="site.indx")
        index_and_crawl.apply_async(("HTTP://Site.GOV:80/#top",), connection=connection)
    [message] = broker.take("site.index")
    assert message.decode()[1] == {"url": "http://site.gov/", "domain": "site.gov"}
