"""Tasks that kill their processes as soon as they begin, many at a time: each run counts, and none is left out."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from app.services import Urls
from tests.support import shop
from tests.support.broker import Broker
from tests.support.corner import own_vhost
from tests.support.waiting import eventually
from tests.support.worker import worker

pytestmark = pytest.mark.acceptance


@pytest.mark.slow
@pytest.mark.parametrize("messages", [8, pytest.param(60, marks=pytest.mark.long)])
def test_a_run_counts_though_its_process_died_before_the_worker_read_that_it_began(
    services: Urls, tmp_path: Path, messages: int
) -> None:
    with own_vhost(services) as url:
        broker = Broker(url)
        options = {"app": "tests.support.shop", "queues": ["quick.mail"], "options": ["--loglevel=INFO"]}
        # Many processes for few cores: the worker is late to read what they say.
        with worker({"CELERY_BROKER_URL": url}, tmp_path / "worker.log", concurrency=8, **options):  # type: ignore[arg-type]
            for number in range(messages):
                body = json.dumps([[str(tmp_path / f"journal-{number}")], {}, {}]).encode()
                headers = {"task": shop.suicide.name, "id": f"suicide-{number}", "lang": "py"}
                json_type = {"content_type": "application/json", "content_encoding": "utf-8"}
                broker.post(body, exchange="", key="quick.mail", headers=headers, **json_type)
            eventually(lambda: broker.depth("quick.dead") == messages, "all are dead", seconds=120)
    runs = [(tmp_path / f"journal-{number}").read_text().split().count("run") for number in range(messages)]
    assert Counter(runs) == {3: messages}
