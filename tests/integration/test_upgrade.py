"""docs/guides/upgrade.md on a broker with the queues, messages and dead letters that version 0.1.0 left there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Queue

from app.broker.delivery import Delivery
from app.broker.policies.base import Retry
from app.envelopes import call_of_envelope
from app.topology.check import check_topology
from app.topology.declare import all_queues, declare_all
from app.topology.management_api import ManagementApi
from app.topology.model import bindings_of
from app.topology.policies import site_policy
from config.settings import Settings
from tests.support.broker import Broker
from tests.support.corner import environment_of
from tests.support.deliveries import FAILURE
from tests.support.guide import Guide, as_process_with

pytestmark = pytest.mark.integration

#: The queues whose arguments version 0.1.0 declared in another way: classic, with a TTL in ms.
FORMER_ARGUMENTS: dict[str, dict[str, Any]] = {
    "site.tick": {"x-max-length": 1, "x-message-ttl": 1_000},
    "orchestrator.requests": {"x-message-ttl": 10_000},
}

#: What version 0.1.0 wrote, with the numbers of its default budget: a message after two failed runs, and a dead letter.
ENVELOPE = b'{"type": "index", "url": "https://a.example/", "domain": "a.example"}'
RETRIED = {
    "retry-timeout-ms": 5_000,
    "retry-max": 5,
    "current-iteration": 2,
    "perennial-first-failed-at": 1795000000.0,
    "perennial-last-error": "ServerError: GET https://a.example/: 500",
}
DEAD = RETRIED | {
    "current-iteration": 5,
    "perennial-dead-id": "79b7c968-9e16-4f85-9829-b89fec13faf6",
    "perennial-reason": "server-error",
    "perennial-queue": "site.index",
    "perennial-task": "site.index",
    "perennial-exception": "ServerError",
    "perennial-message": "GET https://a.example/: 500",
    "perennial-traceback": "Traceback: 500",
    "perennial-failed-at": 1795000000.0,
    "perennial-attempts": 6,
    "perennial-worker": "worker@host",
}
EXPORTED = {
    "id": "79b7c968-9e16-4f85-9829-b89fec13faf6",
    "set": "site.dead",
    "queue": "site.index",
    "reason": "server-error",
    "exchange": "site.dead",
    "routing_key": "index",
    "content_type": None,
    "content_encoding": None,
    "properties": {"message_id": "6a1a", "delivery_mode": 2},
    "headers": DEAD,
    "body": ENVELOPE.decode(),
}


@pytest.fixture
def broker(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker(settings.broker)
    # The API's statistics are 5 s old. That would delay the migration, so the count is read from the broker.
    monkeypatch.setattr(ManagementApi, "message_counts", lambda _api, queue: (broker.depth(queue), 0))
    return broker


@pytest.fixture
def former(settings: Settings, broker: Broker) -> Iterator[Any]:
    """Yield a channel of a broker with the topology of 0.1.0 and a dead letter; nothing else differs."""
    with Connection(settings.broker) as connection, connection.channel() as channel:
        assert not declare_all(connection, settings)
        channel.exchange_delete("perennial.queries")
        channel.exchange_delete("perennial.outcomes")
        for name, arguments in FORMER_ARGUMENTS.items():
            declare_again(channel, {queue.name: queue for queue in all_queues(settings)}[name], arguments)
        channel.queue_unbind("orchestrator.requests", "perennial.events", "heartbeat")
        channel.queue_bind("orchestrator.requests", "perennial.requests", "heartbeat")
        broker.post(ENVELOPE, exchange="site.dead", headers=DEAD)
        yield channel


def declare_again(channel: Any, queue: Queue, arguments: dict[str, Any]) -> None:
    """Declare a queue with other arguments and its bindings."""
    channel.queue_delete(queue.name)
    channel.queue_declare(queue.name, durable=True, auto_delete=False, arguments=arguments)
    for exchange, key in bindings_of(queue):
        channel.queue_bind(queue.name, exchange, key)


def test_the_guide_replaces_the_queues_of_the_former_release_and_keeps_messages_in_their_order(
    settings: Settings, broker: Broker, former: Any
) -> None:
    guide = Guide("docs/guides/upgrade.md", {})
    with as_process_with(environment_of(settings)):
        guide.follow(exit_codes={"perennial topology check": 1})
        guide.follow()
        assert check_topology(settings).findings == []

        pack = next(queue for queue in all_queues(settings) if queue.name == "site.pack")
        declare_again(former, pack, {"x-dead-letter-exchange": "site.dead"})
        for number in range(3):
            body = json.dumps({"type": "pack_full", "domain": f"{number}.example"}).encode()
            broker.post(body, key="pack_full", headers={**RETRIED, "number": number})
        before = [(bytes(each.body), each.headers) for each in broker.peek("site.pack")]
        guide.follow()
        guide.end()
    assert len(before) == 3
    after = [(bytes(each.body), each.headers) for each in broker.take("site.pack")]
    assert [(body, _own(headers)) for body, headers in after] == [(body, _own(headers)) for body, headers in before]
    [letter] = broker.take("site.dead")
    assert (bytes(letter.body), letter.headers) == (ENVELOPE, DEAD)


def _own(headers: dict[str, Any]) -> dict[str, Any]:
    """Return the headers without the broker's own count of deliveries."""
    return {name: value for name, value in headers.items() if name != "x-delivery-count"}


def test_messages_of_the_former_release_keep_their_meaning_and_their_spent_budget(settings: Settings) -> None:
    retried = _delivery(ENVELOPE, RETRIED)
    call = call_of_envelope(retried)
    assert (call.task, call.kwargs) == ("site.index", {"url": "https://a.example/", "domain": "a.example"})
    decision = site_policy(settings).decide(retried, FAILURE)
    assert isinstance(decision, Retry)
    assert (decision.delay_ms, decision.headers["current-iteration"]) == (20_000, 3)
    assert decision.headers["perennial-first-failed-at"] == RETRIED["perennial-first-failed-at"]


def test_unknown_fields_and_headers_of_a_later_release_are_no_error(settings: Settings) -> None:
    body = json.dumps({**json.loads(ENVELOPE), "weight": 7}).encode()
    later = _delivery(body, {**RETRIED, "perennial-later": "kept"})
    assert call_of_envelope(later).kwargs["weight"] == 7
    assert later.own_headers()["perennial-later"] == "kept"


def _delivery(body: bytes, headers: dict[str, Any]) -> Delivery:
    return Delivery(
        body=body,
        headers=headers,
        properties={},
        content_type=None,
        content_encoding=None,
        queue="site.index",
        routing_key="index",
        exchange="site",
    )


def test_an_export_of_the_former_release_is_restored(settings: Settings, broker: Broker, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from app.cli.main import cli

    file = tmp_path / "dead-letters.jsonl"
    file.write_text(json.dumps(EXPORTED) + "\n")
    with as_process_with(environment_of(settings)):
        for command in (["topology", "apply"], ["dead", "restore", str(file)]):
            done = CliRunner().invoke(cli, command)
            assert done.exit_code == 0, done.output
        listed = CliRunner().invoke(cli, ["dead", "list", "--json"])
    assert "1 restored" in done.output
    [letter] = json.loads(listed.stdout)
    assert (letter["id"], letter["reason"], letter["attempts"]) == (EXPORTED["id"], "server-error", 6)
    [restored] = broker.take("site.dead")
    assert (bytes(restored.body), restored.headers) == (ENVELOPE, DEAD)
