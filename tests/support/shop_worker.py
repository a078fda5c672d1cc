"""A worker of the shop, and the messages that its clients send."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import shop
from tests.support.broker import Broker
from tests.support.worker import Worker, worker


@contextmanager
def shop_worker(url: str, log: Path, queues: Sequence[str], *options: str, concurrency: int = 2) -> Iterator[Worker]:
    """Run a worker of the shop on a broker for the block."""
    chosen = [*options, "--loglevel=INFO"]
    environment = {"CELERY_BROKER_URL": url}
    with worker(
        environment, log, app="tests.support.shop", queues=queues, concurrency=concurrency, options=chosen
    ) as running:
        yield running


def post(
    broker: Broker, queue: str, task: str, journal: Path, *, timelimit: Sequence[Any] = (None, None), **kwargs: object
) -> None:
    """Send one message to a queue through its exchange. Its id is the name of its journal."""
    work_queue = shop.policies.policy_for(queue).work_queue(queue)
    broker.post(
        json.dumps([[], {"journal": str(journal), **kwargs}, {}]).encode(),
        exchange=work_queue.exchange.name,
        key=work_queue.routing_key,
        headers={
            "task": f"tests.support.shop.{task}",
            "id": journal.name,
            "lang": "py",
            "timelimit": list(timelimit),
        },
        content_type="application/json",
        content_encoding="utf-8",
        delivery_mode=2,
    )


def runs(journal: Path, line: str = "run") -> int:
    """Return how often a message ran, or how many such lines its journal has."""
    return journal.read_text().split().count(line) if journal.exists() else 0
