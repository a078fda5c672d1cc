"""What a broker can do to a worker that retries: refuse, lose an exchange, be killed. Nothing is lost."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
import requests
from kombu import Connection

from app.private_services import Urls
from tests.support import shop
from tests.support.broker import Broker
from tests.support.corner import own_vhost
from tests.support.kill import Killable
from tests.support.shop_worker import post, runs, shop_worker
from tests.support.waiting import eventually
from tests.support.worker import Worker

pytestmark = pytest.mark.acceptance

#: The queues of the shop that a worker of these tests serves: each policy, on quorum and on classic queues.
QUEUES = ("mail", "mail.classic", "labels.print", "orders", "orders.classic")


class Vhost:
    """A vhost as its administrator sees it."""

    def __init__(self, url: str, api: str) -> None:
        self.url = url
        self._api = api.rstrip("/")
        self._name = quote(urlsplit(url).path.removeprefix("/"), safe="")

    def refuse(self, *queues: str) -> None:
        """Let queues refuse every message."""
        pattern = f"^({'|'.join(map(re.escape, queues))})$"
        policy = {"pattern": pattern, "definition": {"max-length": 0, "overflow": "reject-publish"}}
        self._ask("PUT", f"policies/{self._name}/refuse", json=policy)

    def admit(self) -> None:
        """Take that back."""
        self._ask("DELETE", f"policies/{self._name}/refuse")

    def delete_exchange(self, name: str) -> None:
        """Delete an exchange, whatever is bound to it."""
        self._ask("DELETE", f"exchanges/{self._name}/{name}")

    def held(self, queue: str) -> int:
        """Return the messages of a queue, those included that wait to be dead-lettered."""
        return int(self._ask("GET", f"queues/{self._name}/{queue}").json().get("messages", 0))

    def _ask(self, method: str, path: str, **options: object) -> requests.Response:
        answer = requests.request(method, f"{self._api}/{path}", timeout=10, **options)  # type: ignore[arg-type]
        answer.raise_for_status()
        return answer


@pytest.fixture(scope="module")
def vhost(services: Urls) -> Iterator[Vhost]:
    with own_vhost(services) as url:
        yield Vhost(url, services.broker_api_url)


@pytest.fixture(scope="module")
def running(vhost: Vhost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with shop_worker(vhost.url, tmp_path_factory.mktemp("no-loss") / "worker.log", QUEUES) as running:
        yield running


@pytest.fixture
def broker(vhost: Vhost) -> Broker:
    return Broker(vhost.url)


# First, while no worker of another test runs on the broker that is killed.

#: Where messages wait when the broker is killed, by the queue that they failed in.
WAITING = {
    "wait.mail": "wait.delay.8000",
    "wait.mail.classic": "wait.old.delay.8000",
    "wait.labels": "wait.labels.retry",
    "wait.orders": "wait.orders.retry",
    "wait.orders.classic": "wait.orders.classic.retry",
}


@pytest.mark.long
@pytest.mark.slow
def test_a_broker_that_is_killed_while_messages_wait_loses_none(killable: Killable, tmp_path: Path) -> None:
    url = killable.settings.broker
    with Connection(url) as connection, connection.channel() as channel:
        for queue in (*shop.policies.queues(), *shop.policies.work_queues()):
            queue(channel).declare()
    # RabbitMQ 3.10 can lose a quorum queue that it made a moment before it was killed.
    killable.restart()
    broker = Broker(url)
    with shop_worker(url, tmp_path / "worker.log", tuple(WAITING)):
        for queue in WAITING:
            for number in range(5):
                post(broker, queue, "fail", tmp_path / f"{queue}-{number}")
        eventually(lambda: broker.depths(WAITING.values()) == [5] * 5, "all wait")
        # A confirm says that the queue is on disk, with all that came before.
        for queue in WAITING.values():
            broker.post(b"behind them", exchange="", key=queue, delivery_mode=2)
        killable.kill("beam.smp")
        killable.start()
        eventually(lambda: places(broker) == dict.fromkeys(WAITING, 5), "all are dead", seconds=90)


def places(broker: Broker) -> dict[str, int]:
    """Return how many messages of each queue are in its dead set; one that is there twice counts once."""
    found = {}
    for queue in WAITING:
        rest = shop.policies.policy_for(queue).dead
        assert rest is not None
        found[queue] = {str(message.body) for message in broker.peek(rest.name)}
    return {queue: sum("journal" in body for body in bodies) for queue, bodies in found.items()}


#: A queue, the task that fails in it, the queue that refuses its replacement, and what the worker cannot do.
REFUSED = [
    ("mail", "out_of_stock", "shop.dead", "dead-letter"),
    ("orders", "out_of_stock", "orders.error", "dead-letter"),
    ("mail.classic", "fail", "old.delay.300", "retry"),
    ("labels.print", "fail", "labels.retry", "retry"),
]


def test_where_the_broker_refuses_a_replacement_the_original_stays_and_is_tried_again_with_a_growing_pause(
    running: Worker, vhost: Vhost, broker: Broker, tmp_path: Path
) -> None:
    vhost.refuse(*(refused for _, _, refused, _ in REFUSED))
    before, began = len(running.log), time.monotonic()
    for queue, task, _, _ in REFUSED:
        post(broker, queue, task, tmp_path / queue)
    lines = {queue: f"Cannot {verb} a message of {queue}, again in" for queue, _, _, verb in REFUSED}
    eventually(lambda: min(running.log[before:].count(line) for line in lines.values()) >= 3, "three attempts each")
    took = time.monotonic() - began
    assert took >= 3, "the pauses were not kept"
    for queue, _, refused, _ in REFUSED:
        pauses = re.findall(rf"{lines[queue]} ([\d.]+) s", running.log[before:])
        assert [float(pause) for pause in pauses][:3] == [1, 2, 4], queue
        assert runs(tmp_path / queue) == 1
        assert broker.depth(refused) == 0
    vhost.admit()
    for queue, _, _, verb in REFUSED:
        dead = shop.policies.policy_for(queue).dead
        assert dead is not None
        [message] = eventually(partial(broker.take, dead.name), f"{queue}: it is dead-lettered", seconds=60)
        attempts = 1 if verb == "dead-letter" else 3
        assert message.headers["perennial-attempts"] == runs(tmp_path / queue) == attempts, queue


def test_a_quorum_queue_keeps_what_it_cannot_dead_letter(
    running: Worker, vhost: Vhost, broker: Broker, tmp_path: Path
) -> None:
    vhost.delete_exchange("orders.retry")
    post(broker, "orders", "fail", tmp_path / "journal")
    eventually(lambda: runs(tmp_path / "journal") == 1, "a run")
    eventually(lambda: vhost.held("orders") == 1, "it is still held", seconds=60)
    assert broker.depth("orders.retry") == broker.depth("orders.error") == 0
