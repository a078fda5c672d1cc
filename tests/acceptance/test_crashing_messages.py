"""A message that kills the whole worker at each delivery: it ends in the dead set, and its neighbours are done."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.services import Urls
from tests.support.broker import Broker
from tests.support.corner import own_vhost
from tests.support.shop_worker import post, runs, shop_worker
from tests.support.waiting import eventually
from tests.support.worker import Worker

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

NEIGHBOURS = range(6)


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
            with shop_worker(url, tmp_path / f"{number}.log", [queue]) as running:
                if first:
                    first = False
                    for path in neighbours[:3]:
                        post(broker, queue, "succeed", path)
                    post(broker, queue, "murder", killer)
                    for path in neighbours[3:]:
                        post(broker, queue, "succeed", path)
                eventually(lambda: ended(running), "killed, or no more", seconds=120)
                if broker.depth(dead_set):
                    eventually(lambda: all(runs(path, "done") for path in neighbours), "done")
                    break
        [dead] = broker.take(dead_set)
    assert (dead.headers["id"], dead.headers["perennial-reason"]) == ("killer", "delivery-limit")
    assert runs(killer) == 3
