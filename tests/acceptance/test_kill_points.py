"""A worker killed between every two operations on the broker: the message is still there, and rarely twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

import psutil
import pytest
from kombu import Connection

from app.broker.policies.base import Postponed
from app.private_services import Urls
from config.settings import ROOT
from tests.support import killing
from tests.support.broker import Broker
from tests.support.corner import own_vhost
from tests.support.deliveries import delivery
from tests.support.killing import Order
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance

QUEUES = ("slow.mail", "slow.labels.print", "slow.orders")

#: Where the message is at the end of a run that is not killed, by queue and kind of failure.
ENDS = {
    ("slow.mail", "retry"): "slow.delay.60000",
    ("slow.mail", "dead"): "slow.dead",
    ("slow.mail", "postpone"): "slow.delay.64000",
    ("slow.labels.print", "retry"): "slow.labels.retry",
    ("slow.labels.print", "dead"): "slow.labels.failed",
    ("slow.labels.print", "postpone"): "slow.labels.delay.64000",
    ("slow.orders", "retry"): "slow.orders.retry",
    ("slow.orders", "dead"): "slow.orders.error",
    ("slow.orders", "postpone"): "slow.orders.delay.64000",
}


@dataclass(frozen=True, slots=True)
class Run:
    """How a run ended: whether it was killed, and its operations, of which the last one was then not carried out."""

    killed: bool
    operations: list[str]


class Bench:
    """The broker, and the process that forks workers."""

    def __init__(self, broker: Broker, process: subprocess.Popen[str], folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self._process = process
        self._numbers = count()

    def post(self, queue: str, task: str, **kwargs: str) -> None:
        """Send one message for one of the tasks that fail."""
        work_queue = killing.policies.policy_for(queue).work_queue(queue)
        # A permanent error is retried there, too, unless no retry is left.
        spent = {"mb-retries": 0} if (queue, task) == ("slow.labels.print", "dead") else {}
        self.broker.post(
            json.dumps([[], kwargs, {}]).encode(),
            exchange=work_queue.exchange.name,
            key=work_queue.routing_key,
            headers={"task": f"killing.{task}", "id": str(uuid.uuid4()), "lang": "py", **spent},
            content_type="application/json",
            content_encoding="utf-8",
        )

    def run(self, queue: str, *, at: int, pool: str = "solo", settles: bool = True) -> Run:
        """Run a worker until it is killed before its operation `at`, or has settled its message."""
        report = self.folder / f"report-{next(self._numbers)}"
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(asdict(Order(queue, at, str(report), pool))) + "\n")
        stdin.flush()
        killed = json.loads(stdout.readline())["killed"]
        run = Run(killed, report.read_text().splitlines())
        assert bool(run.operations) == settles, Path(f"{report}.log").read_text()
        eventually(lambda: self.broker.consumers(queue) == 0, "the broker has noticed")
        return run

    def found(self, queue: str, *, least: int) -> list[str]:
        """Wait for `least` messages and take them all; return the queues in which they were."""
        places = dict.fromkeys([queue, *(end for (of, _), end in ENDS.items() if of == queue)])
        eventually(lambda: sum(self.broker.depths(places)) >= least, f"{least} in {list(places)}")
        return [place for place in places for _ in self.broker.take(place)]


@pytest.fixture(scope="module")
def bench(services: Urls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with own_vhost(services) as url, forking(url) as process:
        with Connection(url) as connection:
            declare(connection.channel())
        try:
            yield Bench(Broker(url), process, tmp_path_factory.mktemp("reports"))
        finally:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()


def forking(url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.killing"]
    environment = {**os.environ, "CELERY_BROKER_URL": url}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def declare(channel: object) -> None:
    """Declare all there is, so that a message has somewhere to go before a worker runs, and where to be looked for."""
    for queue in (*killing.policies.work_queues(), *killing.policies.queues()):
        queue(channel).declare()
    for name in QUEUES:
        decision = killing.policies.policy_for(name).postpone(delivery(name), 64.0)
        assert isinstance(decision, Postponed)
        decision.queue(channel).declare()


def copies(run: Run) -> set[int]:
    """Return how many copies of the message there may be: two from when its replacement is published until the
    original is acknowledged. A publish that was not confirmed may have arrived or not.
    """
    if not run.killed or "Basic.Publish" not in run.operations[:-1]:
        return {1}
    return {1, 2} if run.operations[-1] == "await confirm" else {2}


#: Ends for which the operations on the broker differ. Those of every other end are the same as of one end here.
DISTINCT = {("slow.mail", "retry"), ("slow.mail", "dead"), ("slow.orders", "retry")}


@pytest.mark.parametrize(
    ("queue", "failure", "pool"),
    [
        ("slow.mail", "retry", "prefork"),
        *(pytest.param(*end, "solo", marks=() if end in DISTINCT else pytest.mark.long) for end in ENDS),
    ],
)
def test_a_worker_killed_before_any_operation_loses_no_message(
    bench: Bench, queue: str, failure: str, pool: str
) -> None:
    for at in count(1):
        bench.post(queue, failure)
        run = bench.run(queue, at=at, pool=pool)
        found = bench.found(queue, least=min(copies(run)))
        assert len(found) in copies(run), f"{run}: {found}"
        assert set(found) <= {queue, ENDS[queue, failure]}
        if not run.killed:
            assert found == [ENDS[queue, failure]]
            assert run.operations[-1] == (
                "Basic.Reject" if (queue, failure) == ("slow.orders", "retry") else "Basic.Ack"
            )
            return


def test_a_message_that_crashes_every_worker_is_dead_lettered_and_does_not_loop(bench: Bench, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    bench.post("fragile", "fell_worker", journal=str(journal))
    for _ in range(2):
        assert bench.run("fragile", at=1_000, settles=False).killed
    assert not bench.run("fragile", at=1_000).killed
    assert journal.read_text() == "run\n" * 2
    [message] = bench.broker.take("fragile.error")
    assert message.headers["perennial-reason"] == "delivery-limit"
    assert message.headers["perennial-attempts"] == 2
    error = json.loads(message.headers["retry_info"])["error"]
    assert error == "2 deliveries were neither acknowledged nor rejected"
    assert json.loads(message.body)[1] == {"journal": str(journal)}
