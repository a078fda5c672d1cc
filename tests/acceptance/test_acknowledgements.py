"""Acknowledgements in groups on a real broker: how the worker ends decides whether completed messages come back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.services import Urls
from tests.support import shop
from tests.support.broker import Broker
from tests.support.corner import own_vhost
from tests.support.waiting import eventually
from tests.support.worker import Worker, worker

pytestmark = pytest.mark.acceptance

QUEUE = shop.policies.policy_for("mail").work_queue("mail")


def post(broker: Broker, task: str, journal: Path, **kwargs: object) -> None:
    """Send one message whose task has a minute."""
    broker.post(
        json.dumps([[], {"journal": str(journal), **kwargs}, {}]).encode(),
        exchange=QUEUE.exchange.name,
        key=QUEUE.routing_key,
        headers={"task": f"tests.support.shop.{task}", "id": journal.name, "lang": "py", "timelimit": [60, 60]},
        content_type="application/json",
        content_encoding="utf-8",
    )


@contextmanager
def mail_worker(url: str, folder: Path, *options: str) -> Iterator[Worker]:
    """Run a worker on the queue `mail` for the block, with further options."""
    environment, log = {"CELERY_BROKER_URL": url}, folder / "worker.log"
    chosen = [*options, "--loglevel=INFO"]
    with worker(environment, log, app="tests.support.shop", queues=["mail"], options=chosen) as running:
        yield running


def are_done(journals: Sequence[Path]) -> bool:
    return all(journal.exists() and "done" in journal.read_text() for journal in journals)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_worker_that_stops_has_acknowledged_everything_that_it_completed(
    services: Urls, tmp_path: Path, pool: str
) -> None:
    journals = [tmp_path / f"quick-{number}" for number in range(11)]
    with own_vhost(services) as url:
        broker = Broker(url)
        with mail_worker(url, tmp_path, f"--pool={pool}") as running:
            for journal in journals:
                post(broker, "scripted", journal, outcomes=["done"])
            eventually(lambda: are_done(journals), "all are done")
            running.leave()
        eventually(lambda: broker.consumers("mail") == 0, "the broker has noticed")
        assert broker.depth("mail") == 0


def test_few_messages_completed_behind_a_long_one_come_back_when_the_worker_is_killed(
    services: Urls, tmp_path: Path
) -> None:
    long, journals = tmp_path / "long", [tmp_path / f"quick-{number}" for number in range(11)]
    with own_vhost(services) as url:
        broker = Broker(url)
        with mail_worker(url, tmp_path) as running:
            post(broker, "linger", long)
            eventually(long.exists, "the long one runs")
            for journal in journals:
                post(broker, "scripted", journal, outcomes=["done"])
            eventually(lambda: are_done(journals), "the others are done")
            running.kill()
        eventually(lambda: broker.consumers("mail") == 0, "the broker has noticed")
        names = [message.headers["id"] for message in broker.take("mail")]
    # One of the others may wait for an acknowledgement together with the next, and the result of one be under way.
    assert "long" in names
    assert len(names) <= 3
