"""The private services: kept or started again on their data, alone on loopback ports; and a RabbitMQ low on memory."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
import requests
from celery.exceptions import OperationalError
from kombu import Connection, Producer, Queue, pools

from app.broker.errors import PublishFailed, RequestTimedOut, Unroutable
from app.broker.outgoing import Outgoing
from app.broker.publishing import Publisher
from app.broker.rpc.requestor import Requestor
from app.broker.worker.producer import NotConfirmed
from app.errors import ServicesError
from app.machine import wait_until
from app.private_services import ServiceStatus, down, service, status, up
from config.settings import Settings
from tests.support.broker import Broker
from tests.support.command import completed, perennial
from tests.support.corner import own_vhost
from tests.support.erlang import evaluate, set_memory_limit
from tests.support.kill import discard
from tests.support.sender import TIMEOUT, application
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

LOOPBACK, LOOPBACK_6 = "0100007F", "00000000000000000000000001000000"
GIVEN = "amqp://someone:hidden@broker.example//"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Both services of one checkout, whose folder has a space in its name."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("a checkout"))
    try:
        up(settings)
        yield settings
    finally:
        discard(settings)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Settings]:
    """Return a checkout with a given broker, so that only Redis is private and starts at once."""
    settings = Settings(data_dir=tmp_path, broker_url=GIVEN)
    try:
        yield settings
    finally:
        down(settings)


def pid(settings: Settings, name: str) -> int:
    found = next(each.pid for each in status(settings) if each.name == name)
    assert found is not None
    return found


def kill(settings: Settings, name: str) -> None:
    victim = pid(settings, name)
    os.kill(victim, signal.SIGKILL)
    assert wait_until(lambda: victim not in processes_below(settings.data_dir), 10)


def replace_port_mapper(settings: Settings) -> None:
    """Do what a node does that finds its port mapper dead: start another one, as a daemon."""
    environ = Path(f"/proc/{pid(settings, 'rabbitmq')}/environ").read_text().split("\0")
    environment = dict(line.split("=", 1) for line in environ if line)
    folder = settings.services_file.parent / "epmd"
    (mapper,) = service.running(folder, {"epmd"})
    os.kill(mapper, signal.SIGKILL)
    assert wait_until(lambda: mapper not in service.running(folder, {"epmd"}), 10)
    subprocess.run(["epmd", "-daemon"], env=environment, check=True)
    assert wait_until(lambda: bool(service.running(folder, {"epmd"})), 10)


def processes_below(folder: Path) -> list[int]:
    """Return every process that runs in `folder`, or names it or its node in its arguments or environment."""
    service.reap()
    state = folder / "services" / "state.json"
    marks = [os.fsencode(folder)]
    marks += [json.loads(state.read_text())["node"].encode()] if state.exists() else []
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command_line = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            cwd = (entry / "cwd").readlink()
        except OSError:
            continue
        if entry.name.isdigit() and (cwd.is_relative_to(folder) or any(mark in command_line for mark in marks)):
            found.append(int(entry.name))
    return found


def listeners(pids: list[int]) -> list[tuple[str, int]]:
    """Return (address in hexadecimal, port) of every TCP socket on which one of `pids` listens: proc(5)."""
    inodes = set()
    for each in pids:
        inodes |= {str(fd.readlink()) for fd in Path(f"/proc/{each}/fd").iterdir() if fd.is_symlink()}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state, inode = (line.split()[column] for column in (1, 3, 9))
            if state == "0A" and f"socket:[{inode}]" in inodes:
                found.append((local.split(":")[0], int(local.split(":")[1], 16)))
    return found


def test_services_that_run_and_answer_are_kept(checkout: Settings) -> None:
    before = status(checkout)
    assert [each.state for each in before] == ["up", "up"]
    urls = up(checkout)
    assert status(checkout) == before
    assert (urls.broker_url, urls.redis_url) == (checkout.broker, checkout.redis)


def test_nothing_of_ours_listens_outside_loopback(checkout: Settings) -> None:
    found = listeners(processes_below(checkout.data_dir))
    assert {address for address, _ in found} <= {LOOPBACK, LOOPBACK_6}
    ports = json.loads(checkout.services_file.read_text())["ports"]
    assert {port for _, port in found} == set(ports.values())


def test_passwords_are_readable_by_their_owner_only_and_stand_in_no_arguments(checkout: Settings) -> None:
    password = json.loads(checkout.services_file.read_text())["password"]
    holders = [file for file in checkout.services_file.parent.rglob("*") if file.suffix in {".json", ".conf"}]
    assert {file.stat().st_mode & 0o777 for file in holders} == {0o600}
    arguments = [Path(f"/proc/{each}/cmdline").read_bytes() for each in processes_below(checkout.data_dir)]
    assert len(arguments) >= 3
    assert not any(password.encode() in line for line in arguments)


@pytest.mark.slow
def test_confirmed_messages_and_keys_survive_sigkill_and_a_lost_state_file_and_what_runs_is_found(
    checkout: Settings,
) -> None:
    queue = Queue("kept", queue_arguments={"x-queue-type": "quorum"})
    with Connection(checkout.broker, transport_options={"confirm_publish": True}) as connection:
        bound = queue(connection.default_channel)
        bound.declare()
        producer = Producer(connection.default_channel)
        # RabbitMQ 3.10 forgets a quorum queue that was declared less than half a second before a kill.
        published, settled = 0, time.monotonic() + 2
        while published < 200 or time.monotonic() < settled:
            producer.publish({"number": published}, routing_key="kept", delivery_mode=2)
            published += 1
    with redis.Redis.from_url(checkout.redis) as client:
        client.set("kept", "yes")
    kill(checkout, "rabbitmq")
    assert [each.state for each in status(checkout)] == ["down", "up"]
    still_run = processes_below(checkout.data_dir)
    assert pid(checkout, "redis") in still_run
    kept = json.loads(checkout.services_file.read_text())
    checkout.services_file.unlink()
    up(checkout)
    assert json.loads(checkout.services_file.read_text())["password"] == kept["password"]
    assert not set(still_run).intersection(processes_below(checkout.data_dir))
    assert [each.state for each in status(checkout)] == ["up", "up"]
    with Connection(checkout.broker) as connection:
        bound = queue(connection.default_channel)
        messages = iter(lambda: bound.get(no_ack=True), None)
        assert [message.payload["number"] for message in messages] == list(range(published))
        bound.delete()
    with redis.Redis.from_url(checkout.redis) as client:
        assert client.get("kept") == b"yes"


@pytest.mark.long
@pytest.mark.slow
def test_two_checkouts_run_side_by_side_and_one_goes_without_a_trace(checkout: Settings, tmp_path: Path) -> None:
    other = Settings(data_dir=tmp_path)
    before = status(checkout)
    try:
        up(other)
        replace_port_mapper(other)
        ports = [json.loads(each.services_file.read_text())["ports"].values() for each in (checkout, other)]
        assert not set(ports[0]) & set(ports[1])
        with Connection(other.broker) as connection:
            connection.connect()
    finally:
        down(other)
    assert wait_until(lambda: not processes_below(tmp_path), 5)
    assert [each.state for each in status(other)] == ["down", "down"]
    assert status(checkout) == before


def test_a_node_that_cannot_start_says_what_its_log_says(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    settings = Settings(data_dir=tmp_path, redis_url="redis://redis.example/0")
    rabbitmq = tmp_path / "services" / "rabbitmq"
    rabbitmq.mkdir(parents=True)
    (rabbitmq / "mnesia").write_text("not a folder")
    request.addfinalizer(lambda: down(settings))
    with pytest.raises(
        ServicesError, match=r"(?s)RabbitMQ ended with exit code 1.*failed_to_create_feature_flags.*BROKER_URL"
    ):
        up(settings)
    down(settings)
    assert processes_below(tmp_path) == []


def test_two_ups_at_once_start_one_server(small: Settings) -> None:
    environment = {**os.environ, "PERENNIAL_DATA_DIR": str(small.data_dir), "BROKER_URL": GIVEN}
    with ThreadPoolExecutor(3) as pool:
        runs = pool.map(lambda _: perennial(environment, "services", "up", "--json"), range(3))
        answers = [json.loads(run.stdout) for run in runs]
    assert answers[0] == answers[1] == answers[2]
    assert processes_below(small.data_dir) == [pid(small, "redis")]


def test_a_port_is_kept_after_sigkill_and_one_that_is_taken_is_replaced_and_the_data_stay(small: Settings) -> None:
    before = up(small).redis_url
    with redis.Redis.from_url(before) as client:
        client.set("kept", "yes")
        # `appendfsync everysec` writes at once and syncs later: a kill of the process loses nothing.
    kill(small, "redis")
    assert up(small).redis_url == before
    down(small)
    with socket.create_server(("127.0.0.1", urlsplit(before).port or 0)):
        after = up(small).redis_url
    assert urlsplit(after).port != urlsplit(before).port
    with redis.Redis.from_url(after) as client:
        assert client.get("kept") == b"yes"


def test_a_stranger_on_our_port_is_not_taken_for_our_server(small: Settings, redis_url: str) -> None:
    up(small)
    down(small)
    state = json.loads(small.services_file.read_text())
    state["ports"]["redis"] = urlsplit(redis_url).port
    small.services_file.write_text(json.dumps(state))
    assert status(small)[1].state == "down"
    assert urlsplit(up(small).redis_url).port != urlsplit(redis_url).port


@pytest.mark.parametrize("text", ["", "[]", "{", '{"urls": 5}', '{"node": "n", "password": "p", "ports": [1]}'])
def test_a_damaged_state_file_is_as_a_lost_one(tmp_path: Path, text: str) -> None:
    settings = Settings(data_dir=tmp_path)
    settings.services_file.parent.mkdir()
    settings.services_file.write_text(text)
    assert [each.state for each in status(settings)] == ["down", "down"]
    assert settings.broker == "amqp://127.0.0.1:1//"


def test_a_process_that_is_not_ours_is_not_ended(tmp_path: Path) -> None:
    ours = tmp_path / "services" / "redis"
    ours.mkdir(parents=True)
    elsewhere = subprocess.Popen(["sleep", "60"], cwd=tmp_path)
    other_program = subprocess.Popen(["sleep", "60"], cwd=ours)
    try:
        down(Settings(data_dir=tmp_path))
        assert (elsewhere.poll(), other_program.poll()) == (None, None)
    finally:
        for child in (elsewhere, other_program):
            child.kill()
            child.wait()


def test_given_services_are_named_with_the_port_of_their_scheme_and_not_touched(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "none", broker_url=GIVEN, redis_url="redis://:hidden@redis.example:7000/3")
    assert up(settings).broker_url == GIVEN
    down(settings)
    assert status(settings) == [
        ServiceStatus("rabbitmq", "given", "broker.example:5672"),
        ServiceStatus("redis", "given", "redis.example:7000"),
    ]
    assert not settings.services_file.parent.exists()
    nodes = "amqps://indexer:hidden@one.example//;amqp://indexer:hidden@two.example//"
    given = Settings(data_dir=tmp_path, broker_url=nodes, redis_url="rediss://redis.example/3")
    assert [each.address for each in status(given)] == ["one.example:5671, two.example:5672", "redis.example:6379"]


def test_the_command_says_what_is_down_by_its_exit_code(small: Settings) -> None:
    environment = {**os.environ, "PERENNIAL_DATA_DIR": str(small.data_dir), "BROKER_URL": GIVEN}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return perennial(environment, "services", *arguments)

    assert run("status").returncode == 1
    assert run("up").returncode == 0
    answer = run("status", "--json")
    assert answer.returncode == 0
    assert [service["state"] for service in json.loads(answer.stdout)] == ["given", "up"]
    assert "hidden" not in run("status").stdout
    assert run("down").returncode == 0
    assert run("status").returncode == 1


def test_a_watcher_ends_with_the_reason_where_there_is_nothing_to_watch(tmp_path: Path) -> None:
    environment = {**os.environ, "PERENNIAL_DATA_DIR": str(tmp_path), "BROKER_URL": GIVEN}
    given = completed(environment, "app.private_services", "rabbitmq")
    assert (given.returncode, "rabbitmq is no private service" in given.stderr + given.stdout) == (1, True)
    lost = completed(environment, "app.private_services", "redis")
    assert (lost.returncode, "state.json was lost: use `perennial down`" in lost.stderr + lost.stdout) == (1, True)


def test_the_log_of_quorum_queues_is_far_below_the_memory_alarm(checkout: Settings) -> None:
    size, limit = "application:get_env(ra, wal_max_size_bytes)", "vm_memory_monitor:get_memory_limit()"
    evaluate(checkout, f"{{ok, Size}} = {size}, true = 4 * Size =< {limit}")


# A node that is low on memory: it takes no messages, and says why


def end_alarm(checkout: Settings) -> None:
    """Let the node take messages again."""
    set_memory_limit(checkout, "512MB")


@pytest.fixture(scope="module")
def exhausted(checkout: Settings) -> Iterator[str]:
    """Yield the URL of a vhost of a node in its alarm. The test that ends the alarm is the last one of this module."""
    urls = up(checkout)
    with own_vhost(urls) as url:
        try:
            # No node stays below this limit of memory.
            set_memory_limit(checkout, "1MB")
            alarms = f"{urls.broker_api_url}health/checks/local-alarms"
            eventually(
                lambda: requests.get(alarms, timeout=10).status_code == HTTPStatus.SERVICE_UNAVAILABLE, "its alarm"
            )
            yield url
        finally:
            end_alarm(checkout)


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
    task = application(exhausted, timeout=TIMEOUT)
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
    task = application(exhausted, timeout=TIMEOUT)
    task.app.conf.broker_pool_limit = 1
    began = time.monotonic()
    with ThreadPoolExecutor(senders) as pool:
        errors = [sent.exception() for sent in [pool.submit(task.delay) for _ in range(senders)]]
    assert all(isinstance(error, OperationalError) for error in errors)
    assert time.monotonic() - began < senders * TIMEOUT
    pools.reset()


def published(publisher: Publisher, messages: Sequence[Outgoing]) -> bool:
    with suppress(PublishFailed):
        publisher.publish(messages)
        return True
    return False


def test_what_an_alarm_holds_back_arrives_once_however_often_it_is_tried(checkout: Settings, exhausted: str) -> None:
    end_alarm(checkout)
    broker = Broker(exhausted)
    broker.bind_new("held")
    first, second = (
        [Outgoing(exchange="", routing_key="held", body=f"{number} {each}".encode()) for each in range(3)]
        for number in (1, 2)
    )
    publisher = Publisher(exhausted, timeout=2)
    set_memory_limit(checkout, "1MB")
    for messages in (first, first, second, first, second):
        with pytest.raises(PublishFailed, match="low on memory"):
            publisher.publish(messages)
    with pytest.raises(PublishFailed, match="low on memory"):
        publisher.declare([Queue("another")])
    end_alarm(checkout)
    # The callers may try again in any order.
    eventually(lambda: published(publisher, second), "the alarm is over")
    publisher.publish(first)
    publisher.close()
    assert sorted(message.body for message in broker.take("held")) == ["1 0", "1 1", "1 2", "2 0", "2 1", "2 2"]
