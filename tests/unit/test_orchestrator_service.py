"""The orchestrator's service without a broker: what it forwards, orders and forgets; and which worker runs it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

import app.celery
from app.broker.delivery import Delivery
from app.broker.errors import ApplicationError
from app.broker.outgoing import Outgoing
from app.cluster.client.cluster import DEADLINE
from app.cluster.orchestrator.service import REGISTRATION_TIME, OrchestratorService
from app.cluster.orchestrator.store_scan import SCAN_INTERVAL
from app.cluster.orchestrator.worker import OrchestratorConsumer
from app.cluster.placement.model import AddressedOrder
from app.cluster.protocol import MB, OrderOutcome, PackVersion, SearcherReport, to_payload
from app.crawl.record.removed_sites import note_removed
from app.pack.manifest import Manifest
from app.storage.layout import manifest_key
from app.storage.marker import create_marker
from app.storage.store import ObjectStore
from app.topology.queues import events_exchange, requests_exchange
from app.topology.retry_policies import REQUEST_TTL_MS
from config.routes import HEARTBEAT, ORCHESTRATOR, REGISTER_AGAIN, REQUESTS, SEARCHER_QUEUE
from tests.support.deliveries import delivery
from tests.support.stores import folder_store
from tests.support.waiting import eventually

pytestmark = pytest.mark.unit

DOMAINS = tuple(f"{number}.example" for number in range(5))


class Wire:
    """A broker and a clock: events, orders and forwarded requests of a service, in their order."""

    def __init__(self, store: ObjectStore) -> None:
        self.now = 0.0
        self.events: list[Outgoing] = []
        self.sent: list[Outgoing] = []
        self.forwarded: list[str] = []
        self.service = OrchestratorService(
            replicas=1,
            heartbeat=2.0,
            store=lambda: store,
            respond=self._respond,
            publish=self.events.extend,
            every=lambda _seconds, _function: lambda: None,
            clock=lambda: self.now,
        )

    def _respond(self, handlers: Any, *, problem: Callable[[ApplicationError], bytes], returned: Any) -> Any:
        self._handlers, self._problem, self.returned = handlers, problem, returned
        return self

    def take(self, request: Delivery) -> bytes | None:
        """Return the reply to a request, and None for one that is forwarded."""
        payload = json.loads(request.body)
        try:
            reply: bytes | None = self._handlers[payload["type"]](request, payload)
        except ApplicationError as error:
            return self._problem(error)
        return reply

    def forward(self, _request: Delivery, queue: str) -> None:
        self.forwarded.append(queue)

    def send(self, order: Outgoing) -> None:
        self.sent.append(order)

    def orders(self) -> list[tuple[str, str, str]]:
        """Let time pass by a turn; return searcher's queue, type and domain of all orders so far."""
        self.service.turn()
        found = [(each.routing_key, json.loads(each.body)) for each in self.sent]
        return [(queue, body["type"], body["domain"]) for queue, body in found]

    def report(self, name: str, seq: int, *held: PackVersion) -> SearcherReport:
        return SearcherReport(
            searcher_id=name, seq=seq, changes=seq, free_space=900, capacity=1_000, pack_versions=held
        )


def put_manifest(store: ObjectStore, domain: str, generation: int = 1) -> PackVersion:
    """Put a pack's manifest into the store; nothing reads more of the pack."""
    manifest = Manifest(
        domain=domain,
        sha256=f"{domain}.{generation}",
        size=1,
        uncompressed_size=MB,
        pages=3,
        schema_version=1,
        generation=generation,
        kind="full",
        built_at="2026-11-21T10:04:00+00:00",
        crawl_id="",
        own_object="",
        table_start=0,
        table_size=0,
    )
    store.put(manifest_key(domain), manifest.to_json())
    return PackVersion(domain=domain, sha256=manifest.sha256, generation=generation, size_mb=1)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    store = folder_store(tmp_path / "store")
    create_marker(store)
    return store


@pytest.fixture
def wire(store: ObjectStore) -> Wire:
    """Return a service that has connected, with a pack of each domain on the searcher `a`, and is ready."""
    held = [put_manifest(store, domain) for domain in DOMAINS]
    wire = Wire(store)
    wire.service.connected()
    wire.service.receive_report(wire.report("a", 1, *held))
    wire.now = 1.0
    wire.service.receive_report(wire.report("a", 2, *held))
    eventually(lambda: wire.orders() == [] and wire.service.state.routes(now=1.0).ready, "it is ready")
    return wire


def version_of(domain: str) -> PackVersion:
    return PackVersion(domain=domain, sha256=f"{domain}.1", generation=1, size_mb=1)


def search(domain: object) -> Delivery:
    body = json.dumps({"type": "search", "domain": domain, "q": "x"}).encode()
    return replace(delivery("perennial.requests", body=body), properties={"reply_to": "client"})


def test_nothing_is_ordered_before_searchers_had_time_to_register(store: ObjectStore) -> None:
    put_manifest(store, "a.example")
    wire = Wire(store)
    wire.service.connected()
    assert [json.loads(event.body)["type"] for event in wire.events] == [REGISTER_AGAIN]
    wire.service.receive_report(wire.report("a", 1))
    eventually(lambda: wire.orders() == [] and wire.service.state.domains(), "the store was scanned")
    assert wire.orders() == []
    wire.now = REGISTRATION_TIME
    assert wire.orders() == [(SEARCHER_QUEUE.format("a"), "load", "a.example")]
    # Three heartbeats: it would be sent again then.
    assert wire.sent[0].properties["expiration"] == "6000"


def test_nothing_is_ordered_before_a_store_that_was_away_is_scanned_again(
    store: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put_manifest(store, "a.example")
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").mkdir()
    wire = Wire(store)
    wire.service.connected()
    wire.service.receive_report(wire.report("a", 1))
    eventually(lambda: wire.orders() == [] and "Scan of the store failed, again in 1 s" in caplog.text, "it failed")
    (tmp_path / "store").rmdir()
    (tmp_path / "away").rename(tmp_path / "store")
    assert wire.orders() == []
    wire.now = 1.0
    eventually(wire.orders, "it is scanned again, and the pack is ordered")


def test_a_request_comes_back_from_the_queue_of_a_killed_searcher_and_goes_to_another_one(wire: Wire) -> None:
    wire.service.receive_report(wire.report("b", 1, version_of("0.example")))
    request = search("0.example")
    for _ in range(2):
        assert wire.take(request) is None
    assert sorted(wire.forwarded) == [SEARCHER_QUEUE.format("a"), SEARCHER_QUEUE.format("b")]
    wire.returned(SEARCHER_QUEUE.format("a"), request)
    wire.service.turn()
    assert wire.forwarded[2:] == [SEARCHER_QUEUE.format("b")]
    assert [each.searcher_id for each in wire.service.state.routes(now=wire.now).searchers] == ["b"]
    assert b"pack-not-found" in (wire.take(search("never.example")) or b"")
    assert b"expected a name" in (wire.take(search(7)) or b"")


def test_a_searcher_that_registered_after_a_request_came_back_from_its_queue_stays(wire: Wire) -> None:
    request, queue = search("0.example"), SEARCHER_QUEUE.format("a")
    wire.returned(queue, request)
    wire.now += 0.01
    wire.service.receive_report(wire.report("a", 3, *map(version_of, DOMAINS)))
    wire.service.turn()
    assert [each.searcher_id for each in wire.service.state.routes(now=wire.now).searchers] == ["a"]
    assert wire.forwarded == [queue]
    # A heartbeat says nothing of its queue: it comes by another connection.
    wire.now += 0.01
    wire.returned(queue, request)
    wire.now += 0.01
    wire.service.receive_report(replace(wire.report("a", 4), pack_versions=None))
    wire.service.turn()
    assert wire.service.state.routes(now=wire.now).searchers == ()


def test_an_announced_version_is_loaded_and_a_deleted_pack_is_unloaded_and_forgotten(
    wire: Wire, store: ObjectStore
) -> None:
    newer, queue = put_manifest(store, "0.example", 2), SEARCHER_QUEUE.format("a")
    wire.service.pack_updated("0.example")
    eventually(lambda: wire.orders() == [(queue, "load", "0.example")], "the new version is ordered")
    held = [newer, *map(version_of, DOMAINS[1:])]
    assert len(held) == len(DOMAINS)
    loaded = OrderOutcome(report=wire.report("a", 3), domain="0.example", sha256=newer.sha256, held=newer)
    wire.service.receive_outcome(loaded)
    store.delete(manifest_key("0.example"))
    wire.service.pack_updated("0.example")
    eventually(lambda: wire.orders()[1:] == [(queue, "unload", "0.example")], "it is unloaded")
    assert b"pack-not-found" in (wire.take(search("0.example")) or b"")


def test_an_announced_version_is_read_again_if_the_store_was_away(
    wire: Wire, store: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put_manifest(store, "0.example", 2)
    (tmp_path / "store").rename(tmp_path / "away")
    wire.service.pack_updated("0.example")
    eventually(lambda: wire.orders() == [] and "Read of announced packs failed" in caplog.text, "it cannot be read")
    (tmp_path / "away").rename(tmp_path / "store")
    assert wire.orders() == []
    wire.now += 1.0
    eventually(lambda: wire.orders() == [(SEARCHER_QUEUE.format("a"), "load", "0.example")], "it is read, and ordered")


def test_a_heartbeat_that_did_not_come_through_the_exchange_of_searchers_is_refused(wire: Wire) -> None:
    body = json.dumps({"type": HEARTBEAT, **to_payload(wire.report("forged", 1))}).encode()
    by_client = replace(delivery(REQUESTS), body=body, exchange=requests_exchange.name)
    assert b"to which clients publish" in (wire.take(by_client) or b"")
    by_searcher = replace(by_client, exchange=events_exchange.name)
    assert [each.searcher_id for each in wire.service.state.routes(now=1.0).searchers] == ["a"]
    wire.take(by_searcher)
    assert [each.searcher_id for each in wire.service.state.routes(now=1.0).searchers] == ["a", "forged"]


def test_placement_decisions_take_at_most_a_tenth_of_the_event_loop(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided_at: list[float] = []

    def decide(*, now: float, may_place: bool) -> tuple[AddressedOrder, ...]:
        if may_place:
            decided_at.append(now)
            wire.now += 0.25
        return ()

    monkeypatch.setattr(wire.service.state, "tick", decide)
    for tenth in range(20, 100):
        wire.now = max(wire.now, tenth / 10)
        wire.service.turn()
    assert [later - earlier for earlier, later in pairwise(decided_at)] == [2.5] * 3


def test_packs_that_vanish_together_are_kept(wire: Wire, store: ObjectStore, caplog: pytest.LogCaptureFixture) -> None:
    for domain in DOMAINS[1:]:
        store.delete(manifest_key(domain))
    wire.now += SCAN_INTERVAL
    wire.service.receive_report(wire.report("a", 3, *map(version_of, DOMAINS)))
    eventually(lambda: wire.orders() == [] and "The store lacks 4 of 5 known packs" in caplog.text, "it is refused")
    assert wire.take(search("4.example")) is None


def test_sites_that_an_operator_removed_are_unloaded_however_many(
    wire: Wire, store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    for domain in DOMAINS[1:]:
        note_removed(store, domain, int(time.time()))
        store.delete(manifest_key(domain))
        wire.service.pack_updated(domain)
    unloaded = [(SEARCHER_QUEUE.format("a"), "unload", domain) for domain in DOMAINS[1:]]
    eventually(lambda: sorted(wire.orders()) == unloaded, "the removed sites are unloaded")
    assert "The store lacks" not in caplog.text
    # One more that vanished by itself is within what may always be deleted.
    store.delete(manifest_key(DOMAINS[0]))
    wire.service.pack_updated(DOMAINS[0])
    eventually(lambda: len(wire.orders()) == len(DOMAINS), "the last one is unloaded, too")


def started(*queues: str) -> Celery:
    """Return a Celery application as a worker with `--queues` finds it after its first signal."""
    fresh = Celery("fresh", set_as_current=False)
    queues_of_app = app.celery.app.conf.task_queues
    fresh.conf.update(task_queues=queues_of_app, worker_consumer="app.messages.consumer:EnvelopeConsumer")
    app.celery._choose_consumer(instance=SimpleNamespace(app=fresh), options={"queues": queues or None})
    return fresh


def test_a_worker_without_queues_takes_all_tasks_but_the_orchestrators() -> None:
    fresh = started()
    taken = set(fresh.amqp.queues.consume_from)
    assert {"site.index", "site.pack", "site.tick"} <= taken
    assert ORCHESTRATOR not in taken
    assert REQUESTS not in fresh.amqp.queues  # They are no tasks.
    assert fresh.conf.worker_consumer == "app.messages.consumer:EnvelopeConsumer"


def test_a_worker_of_the_orchestrators_queue_is_the_orchestrator() -> None:
    fresh = started("site.tick", ORCHESTRATOR)
    fresh.amqp.queues.select(["site.tick", ORCHESTRATOR])
    assert set(fresh.amqp.queues.consume_from) == {"site.tick", ORCHESTRATOR}
    module, _, name = fresh.conf.worker_consumer.partition(":")
    assert (module, name) == (OrchestratorConsumer.__module__, OrchestratorConsumer.__name__)


def test_a_request_whose_deadline_has_passed_is_in_no_queue() -> None:
    assert DEADLINE * 1_000 < REQUEST_TTL_MS
