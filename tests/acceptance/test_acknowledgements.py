"""Acknowledgements in groups on a real broker: how the worker ends decides whether completed messages come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.services import Urls
from tests.support.broker import Broker
from tests.support.corner import own_vhost
from tests.support.shop_worker import post, runs, shop_worker
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_worker_that_stops_has_acknowledged_everything_that_it_completed(
    services: Urls, tmp_path: Path, pool: str
) -> None:
    journals = [tmp_path / f"quick-{number}" for number in range(11)]
    with own_vhost(services) as url:
        broker = Broker(url)
        with shop_worker(url, tmp_path / "worker.log", ["mail"], f"--pool={pool}") as running:
            for journal in journals:
                post(broker, "mail", "succeed", journal)
            eventually(lambda: all(runs(each, "done") for each in journals), "all are done")
            running.leave()
        eventually(lambda: broker.consumers("mail") == 0, "the broker has noticed")
        assert broker.depth("mail") == 0


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
