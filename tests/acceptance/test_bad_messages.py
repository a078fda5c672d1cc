"""Messages that no client should send: each ends in the dead set, and the worker lives on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.amqp.publish import Publisher
from app.retry.dead_letters import DeadSet
from app.topology import site_policy
from config.settings import Settings
from config.topology import DEAD
from tests.support.broker import Broker
from tests.support.waiting import eventually
from tests.support.worker import worker

pytestmark = pytest.mark.acceptance

#: Headers, under which the body is no JSON, and the reason under which it dies.
BAD: list[tuple[dict[str, Any], str]] = [
    ({"task": [1, 2]}, "invalid-message"),
    ({"retry-timeout-ms": "9" * 4_300}, "undecodable"),
    ({"retry-max": "99999999999999999999"}, "undecodable"),
    ({"current-iteration": 2**63 - 1, "retry-max": 1}, "undecodable"),
    ({"notes": ["x" * 1_000] * 126}, "undecodable"),
    ({"task": "site.index", "id": "a", "timelimit": ["x", "y"]}, "invalid-message"),
    ({"task": "site.index", "id": "b", "eta": "2999-01-01T00:00:00"}, "invalid-message"),
]


def test_absurd_headers_end_in_the_dead_set_and_the_worker_lives_on(
    environment: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    broker = Broker(settings.broker)
    budget = {"RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "1"}
    with worker({**environment, **budget}, tmp_path / "worker.log") as running:
        for headers, _ in BAD:
            broker.post(b"no JSON", headers=headers)
        eventually(lambda: broker.depth(DEAD) == len(BAD), "all are dead")
        assert running.process.poll() is None
    publisher = Publisher(settings.broker)
    reasons = sorted(letter.reason for letter in DeadSet(settings.broker, site_policy(settings), publisher).look())
    publisher.close()
    assert reasons == sorted(reason for _, reason in BAD)
