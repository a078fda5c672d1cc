"""docs/guides/upgrade.md: a queue with other arguments."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kombu import Connection

from app.topology.declare import all_queues, declare_all
from app.topology.management_api import ManagementApi
from app.topology.model import bindings_of
from config.settings import Settings
from tests.support.broker import Broker
from tests.support.command import as_process_with
from tests.support.corner import environment_of
from tests.support.guide import Guide

pytestmark = pytest.mark.integration

RETRIED = {"retry-timeout-ms": 5_000, "retry-max": 5, "current-iteration": 2, "perennial-later": "kept"}


@pytest.fixture
def broker(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker(settings.broker)
    # The API's statistics are 5 s old. That would delay the migration, so the count is read from the broker.
    monkeypatch.setattr(ManagementApi, "message_counts", lambda _api, queue: (broker.depth(queue), 0))
    return broker


def test_the_guide_gives_a_queue_its_arguments_and_keeps_its_messages_in_their_order(
    settings: Settings, broker: Broker
) -> None:
    with Connection(settings.broker) as connection, connection.channel() as channel:
        assert not declare_all(connection, settings)
        pack = next(queue for queue in all_queues(settings) if queue.name == "site.pack")
        channel.queue_delete(pack.name)
        channel.queue_declare(
            pack.name, durable=True, auto_delete=False, arguments={"x-dead-letter-exchange": "site.dead"}
        )
        for exchange, key in bindings_of(pack):
            channel.queue_bind(pack.name, exchange, key)
    for number in range(3):
        body = json.dumps({"type": "pack_full", "domain": f"{number}.example"}).encode()
        broker.post(body, key="pack_full", headers={**RETRIED, "number": number})
    before = [(bytes(each.body), each.headers) for each in broker.peek("site.pack")]
    guide = Guide("docs/guides/upgrade.md", {})
    with as_process_with(environment_of(settings)):
        guide.follow(exit_codes={"perennial topology check": 1})
        guide.follow()
    guide.end()
    assert len(before) == 3
    after = [(bytes(each.body), each.headers) for each in broker.take("site.pack")]
    assert [(body, _own(headers)) for body, headers in after] == [(body, _own(headers)) for body, headers in before]


def _own(headers: dict[str, Any]) -> dict[str, Any]:
    """Return the headers without the broker's own count of deliveries."""
    return {name: value for name, value in headers.items() if name != "x-delivery-count"}
