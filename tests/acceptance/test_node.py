"""A producer and a consumer in Node (amqplib) and a worker and the tools of this project, on the same queues."""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection

from app.broker.dead_letters.letters import DeadLetter
from app.broker.dead_letters.replay import ReplayOptions
from app.broker.dead_letters.sets import DeadSets
from app.broker.declaring import declare_queues
from app.broker.publishing import Publisher
from app.private_services import Urls
from tests.support import shop
from tests.support.broker import Broker
from tests.support.corner import own_vhost
from tests.support.shop_worker import shop_worker
from tests.support.waiting import eventually

# npm downloads the client.
pytestmark = [pytest.mark.acceptance, pytest.mark.long]

PROGRAM = Path(__file__).parent / "node"
SECONDS = 60.0


@dataclass(frozen=True)
class Queue:
    """A queue of the shop: its dead set, what a consumer must know of its policy, and a budget of a producer's own."""

    dead: str
    options: dict[str, Any]
    budget: dict[str, Any]
    #: The runs that the budget allows.
    runs: int


QUEUES = {
    "mail": Queue(
        "shop.dead",
        {"policy": "delay_queues", "namespace": "shop", "timeout": 300, "max": 2},
        {"retry-timeout-ms": 300, "retry-max": 1},
        2,
    ),
    "labels.print": Queue("labels.failed", {"policy": "fixed_ttl", "prefix": "labels", "max": 2}, {"mb-retries": 1}, 2),
    "orders": Queue("orders.error", {"policy": "x_death", "max": 2}, {}, 3),
}

#: Queues whose messages wait for so long that a worker can be stopped meanwhile.
WAITING = {
    "wait.mail": Queue("wait.dead", {"policy": "delay_queues", "namespace": "wait", "timeout": 8_000, "max": 1}, {}, 2),
    "wait.labels": Queue("wait.labels.failed", {"policy": "fixed_ttl", "prefix": "wait.labels", "max": 1}, {}, 2),
    "wait.orders": Queue("wait.orders.error", {"policy": "x_death", "max": 1}, {}, 2),
}
ALL = QUEUES | WAITING


@dataclass
class Bench:
    """A broker with the queues of the shop, and the folder of the Node program."""

    url: str
    folder: Path
    broker: Broker
    dead: DeadSets

    def node(self, *arguments: str) -> list[dict[str, Any]]:
        """Run the program to its end; return the lines that it printed."""
        command = ["node", "peer.js", self.url, *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def produce(self, queue: str, task: str, journal: Path, **kwargs: Any) -> None:
        """Let Node send a task's message with a budget of its own."""
        target = shop.policies.policy_for(queue).work_queue(queue)
        headers = {"task": f"tests.support.shop.{task}", "id": str(uuid.uuid4()), "lang": "py"} | ALL[queue].budget
        body = json.dumps([[], {"journal": str(journal), **kwargs}, {}])
        self.node("produce", target.exchange.name, target.routing_key, json.dumps(headers), body)

    def consume(self, queue: str, stock: Path, runs: int) -> list[dict[str, Any]]:
        """Let Node run messages, which fail until `stock` exists; return what it saw of each run."""
        return self.node("consume", queue, json.dumps(ALL[queue].options), str(stock), str(runs))

    def letter(self, queue: str) -> DeadLetter:
        """Wait for the only message in the dead set of a queue."""
        dead = self.dead.only(ALL[queue].dead)
        [letter] = eventually(dead.letters, f"a letter in {ALL[queue].dead}", seconds=SECONDS)
        return letter


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("node")
    shutil.copytree(PROGRAM, folder, dirs_exist_ok=True)
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", f"--cache={folder / 'cache'}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def bench(services: Urls, folder: Path) -> Iterator[Bench]:
    with own_vhost(services) as url:
        publisher = Publisher(url)
        with Connection(url) as connection:
            queues = [queue for name in ALL for queue in shop.policies.policy_for(name).queues()]
            queues += [shop.policies.policy_for(name).work_queue(name) for name in ALL]
            assert not declare_queues(connection, queues)
        yield Bench(url, folder, Broker(url), DeadSets(shop.policies, url, publisher))
        publisher.close()


@pytest.mark.parametrize("queue", QUEUES)
def test_a_message_from_node_fails_waits_dies_and_is_replayed(bench: Bench, queue: str, tmp_path: Path) -> None:
    journal, runs = tmp_path / "journal", QUEUES[queue].runs
    bench.produce(queue, "fail", journal, times=runs)
    with shop_worker(bench.url, tmp_path / "worker.log", [queue]) as worker:
        letter = bench.letter(queue)
        assert (letter.queue, letter.cause.attempts, letter.error) == (queue, runs, "KeyError: 'no such shelf'")
        bench.dead.replay([letter.id])
        eventually(lambda: "succeeded" in worker.log, worker.log, seconds=SECONDS)
    assert journal.read_text().count("run ") == runs + 1
    assert bench.broker.depth(QUEUES[queue].dead) == 0


@pytest.mark.parametrize("queue", QUEUES)
def test_a_message_that_a_consumer_in_node_gave_up_is_listed_and_replayed(
    bench: Bench, queue: str, tmp_path: Path
) -> None:
    target = shop.policies.policy_for(queue).work_queue(queue)
    properties = {"content_type": "text/plain", "correlation_id": "question", "headers": {"case": "7"}}
    bench.broker.post(b"lamp", exchange=target.exchange.name, key=target.routing_key, **properties)
    seen = bench.consume(queue, tmp_path / "stock", 3)
    letter = bench.letter(queue)
    assert (letter.delivery.body, letter.delivery.headers["case"]) == (b"lamp", "7")
    assert letter.cause.attempts == 3
    (tmp_path / "stock").touch()
    bench.dead.replay([letter.id], ReplayOptions(budget="fresh"))
    seen += bench.consume(queue, tmp_path / "stock", 1)
    assert [(run["body"], run["correlationId"], run["headers"]["case"]) for run in seen] == [
        ("lamp", "question", "7")
    ] * 4
    assert bench.broker.depth(QUEUES[queue].dead) == bench.broker.depth(queue) == 0


@pytest.mark.parametrize("queue", QUEUES)
def test_a_run_that_failed_in_node_counts_in_a_worker(bench: Bench, queue: str, tmp_path: Path) -> None:
    journal, runs = tmp_path / "journal", QUEUES[queue].runs
    bench.produce(queue, "fail", journal)
    bench.consume(queue, tmp_path / "stock", 1)
    with shop_worker(bench.url, tmp_path / "worker.log", [queue]):
        letter = bench.letter(queue)
    assert journal.read_text().count("run ") == runs - 1
    assert letter.cause.attempts == runs


@pytest.mark.parametrize("queue", WAITING)
def test_a_run_that_failed_in_a_worker_counts_in_node(bench: Bench, queue: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    bench.produce(queue, "fail", journal)
    with shop_worker(bench.url, tmp_path / "worker.log", [queue]) as worker:
        eventually(lambda: "Retry 1 of 1" in worker.log, worker.log, seconds=SECONDS)
    # It waits for 8 s, and comes back when the worker is gone.
    [run] = bench.consume(queue, tmp_path / "stock", 1)
    assert bench.letter(queue).delivery.body.decode() == run["body"]
    assert journal.read_text().count("run ") == 1
