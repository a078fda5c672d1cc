"""Workers on a real broker: acknowledgements, tasks that kill their processes, and a name that is taken."""

from __future__ import annotations

import json
import re
import socket
from collections import Counter
from pathlib import Path

import pytest
from kombu import Connection

from app.private_services import Urls
from config.settings import Settings
from tests.support import shop
from tests.support.broker import Broker
from tests.support.corner import own_vhost
from tests.support.shop_worker import post, runs, shop_worker
from tests.support.waiting import eventually
from tests.support.worker import Worker, start

pytestmark = pytest.mark.acceptance


def test_few_messages_completed_behind_a_long_one_come_back_when_the_worker_is_killed(
    services: Urls, tmp_path: Path
) -> None:
    long, journals = tmp_path / "long", [tmp_path / f"quick-{number}" for number in range(11)]
    with own_vhost(services) as url:
        broker = Broker(url)
        with shop_worker(url, tmp_path / "worker.log", ["mail"]) as running:
            post(broker, "mail", "linger", long, timelimit=(60, 60))
            eventually(long.exists, "the long one runs")
            for journal in journals:
                post(broker, "mail", "succeed", journal)
            eventually(lambda: all(runs(each, "done") for each in journals), "the others are done")
            running.kill()
        eventually(lambda: broker.consumers("mail") == 0, "the broker has noticed")
        names = [message.headers["id"] for message in broker.take("mail")]
    # One of the others may wait for an acknowledgement together with the next, and the result of one be under way.
    assert "long" in names
    assert len(names) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("messages", [8, pytest.param(60, marks=pytest.mark.long)])
def test_a_run_counts_though_its_process_died_before_the_worker_read_that_it_began(
    services: Urls, tmp_path: Path, messages: int
) -> None:
    with own_vhost(services) as url:
        broker = Broker(url)
        # Many processes for few cores: the worker is late to read what they say.
        with shop_worker(url, tmp_path / "worker.log", ["quick.mail"], concurrency=8):
            for number in range(messages):
                post(broker, "quick.mail", "suicide", tmp_path / f"journal-{number}")
            eventually(lambda: broker.depth("quick.dead") == messages, "all are dead", seconds=120)
    assert Counter(runs(tmp_path / f"journal-{number}") for number in range(messages)) == {3: messages}


def test_a_worker_serves_all_queues_but_one_that_another_program_consumes_alone_and_acknowledges_all_at_its_end(
    services: Urls, tmp_path: Path
) -> None:
    held, after, *quick = (tmp_path / name for name in ("held", "after", *(f"quick-{number}" for number in range(11))))
    with own_vhost(services) as url:
        broker = Broker(url)
        with Connection(url) as foreign:
            shop.policies.policy_for("mail.classic").work_queue("mail.classic")(foreign.default_channel).declare()
            foreign.default_channel.basic_consume("mail.classic", exclusive=True)
            with shop_worker(url, tmp_path / "worker.log", ["mail", "mail.classic", "quick.mail"]) as running:
                for queue in ("mail", "quick.mail"):
                    post(broker, queue, "succeed", tmp_path / queue)
                    eventually((tmp_path / queue).exists, f"{queue} is served", seconds=60)
                assert re.search("Queue mail.classic refused, .* next attempt in .* in exclusive use", running.log)
                post(broker, "mail", "hold", held)
                eventually(lambda: "hold[held] received" in running.log, "a long one runs")
                foreign.release()
                post(broker, "mail.classic", "succeed", after)
                eventually(after.exists, "it is served", seconds=60)
                assert broker.consumers("mail.classic") == 1
                held.touch()
                eventually(lambda: "hold[held] succeeded" in running.log, "the long one has ended")
                assert running.log.count("hold[held] received") == 1
                for journal in quick:
                    post(broker, "mail", "succeed", journal)
                eventually(lambda: all(runs(journal, "done") for journal in quick), "all are done")
                running.leave()
        eventually(lambda: broker.consumers("mail") == 0, "the broker has noticed")
        assert broker.depth("mail") == 0, "a worker that stops has acknowledged all that it completed"


def test_a_message_of_celerys_protocol_1_runs_and_spends_the_same_budget(services: Urls, tmp_path: Path) -> None:
    exchange = shop.policies.policy_for("quick.mail").work_queue("quick.mail").exchange.name
    with own_vhost(services) as url:
        broker = Broker(url)
        with shop_worker(url, tmp_path / "worker.log", ["quick.mail"]) as running:
            # A replay counts, whenever its message was to expire: in this protocol its body has the time.
            for task, name, more in (
                ("succeed", "succeed", {}),
                ("fail", "fail", {}),
                ("succeed", "replayed", {"perennial-replay": "keep"}),
            ):
                fields = {"task": f"tests.support.shop.{task}", "id": name, "args": [str(tmp_path / name)]}
                expires = "2020-01-01T00:00:00+00:00" if more else None
                body = json.dumps({**fields, "kwargs": {}, "retries": 0, "eta": None, "expires": expires}).encode()
                described = {"content_type": "application/json", "content_encoding": "utf-8", "headers": more}
                broker.post(body, exchange=exchange, key="quick.mail", **described)
            eventually(lambda: broker.depth("quick.dead") == 1, "one is dead", seconds=60)
            for name in ("succeed", "replayed"):
                eventually(lambda: f"succeed[{name}] succeeded" in running.log, "the others have ended")  # noqa: B023
        [dead] = broker.take("quick.dead")
        assert (dead.headers["perennial-task"], json.loads(dead.body)["id"]) == ("tests.support.shop.fail", "fail")
        assert [runs(tmp_path / name) for name in ("succeed", "replayed", "fail")] == [1, 1, 3]


def test_a_worker_waits_until_the_broker_gives_up_the_connection_of_its_killed_predecessor(
    settings: Settings, environment: dict[str, str], tmp_path: Path
) -> None:
    name = f"again@{socket.gethostname()}"
    with Connection(settings.broker) as predecessor:
        # What the broker keeps of a worker that vanished without closing its connection.
        predecessor.default_channel.queue_declare(f"{name}.celery.pidbox", exclusive=True, durable=False)
        again = start(environment, tmp_path / "again.log", queues=["site.index"], concurrency=1)
        try:
            waiting = "Waiting up to 180 s for an exclusive queue of another connection"
            eventually(lambda: again.ready() or waiting in again.log, "it says that it waits", seconds=60)
            assert waiting in again.log
            assert f"{name}.celery.pidbox" in again.log
            predecessor.release()
            eventually(again.ready, "it is ready", seconds=60)
            again.leave()
        finally:
            if again.process.poll() is None:
                again.kill()


NEIGHBOURS = range(6)


@pytest.mark.long
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
