"""Tasks that kill their processes as soon as they begin, many at a time: each run counts, and none is left out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from app.services import Urls
from tests.support.broker import Broker
from tests.support.corner import own_vhost
from tests.support.shop_worker import post, runs, shop_worker
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance


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
