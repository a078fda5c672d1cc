"""A message that kills the whole worker at each delivery: it ends in the dead set, and its neighbours are done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.services import Urls
from tests.support import shop
from tests.support.broker import Broker
from tests.support.corner import own_vhost
from tests.support.waiting import eventually
from tests.support.worker import Worker, worker

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

NEIGHBOURS = range(6)


def post(broker: Broker, queue: str, task: str, journal: Path, **kwargs: object) -> None:
    target = shop.policies.policy_for(queue).work_queue(queue)
    body = json.dumps([[], {"journal": str(journal), **kwargs}, {}]).encode()
    headers = {"task": f"tests.support.shop.{task}", "id": journal.name, "lang": "py"}
    as_json = {"content_type": "application/json", "content_encoding": "utf-8"}
    broker.post(body, exchange=target.exchange.name, key=target.routing_key, headers=headers, **as_json)


@pytest.mark.parametrize(("queue", "dead_set"), [("deadly", "deadly.dead"), ("deadly.labels", "deadly.labels.failed")])
def test_a_message_that_kills_its_workers_is_dead_lettered_and_its_neighbours_are_not_blamed(
    services: Urls, tmp_path: Path, queue: str, dead_set: str
) -> None:
    killer, neighbours = tmp_path / "killer", [tmp_path / f"neighbour-{number}" for number in NEIGHBOURS]
    with own_vhost(services) as url:
        broker = Broker(url)
        first = True

        def ended(running: Worker) -> bool:
            return running.process.poll() is not None or bool(broker.depth(dead_set))

        for number in range(8):
            with worker(
                {"CELERY_BROKER_URL": url},
                tmp_path / f"{number}.log",
                app="tests.support.shop",
                queues=[queue],
                options=["--loglevel=INFO"],
            ) as running:
                if first:
                    first = False
                    for path in neighbours[:3]:
                        post(broker, queue, "scripted", path, outcomes=["done"] * 9)
                    post(broker, queue, "murder", killer)
                    for path in neighbours[3:]:
                        post(broker, queue, "scripted", path, outcomes=["done"] * 9)
                eventually(lambda: ended(running), "killed, or no more", seconds=120)
                if broker.depth(dead_set):
                    eventually(lambda: all(path.exists() and "done" in path.read_text() for path in neighbours), "done")
                    break
        [dead] = broker.take(dead_set)
    assert (dead.headers["id"], dead.headers["perennial-reason"]) == ("killer", "delivery-limit")
    assert killer.read_text().count("run") == 3
