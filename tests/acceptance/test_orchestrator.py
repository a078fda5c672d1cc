"""The orchestrator as a process, with searchers that play their part over AMQP."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.broker.errors import RequestTimedOut
from app.broker.publishing import Publisher
from app.broker.rpc.requestor import Requestor
from app.cluster.protocol import MB, Load, PackRoute, ProblemReply, Routes, read
from app.messages.envelopes import event_message, request_message
from app.pack.manifest import Manifest
from app.storage.layout import manifest_key
from app.storage.open import create_store, open_store
from app.topology.queues import events_exchange, requests_exchange
from config.settings import Settings
from tests.support.actor import HEARTBEAT, actors
from tests.support.broker import Broker
from tests.support.waiting import eventually
from tests.support.worker import Worker, worker

pytestmark = pytest.mark.acceptance


class Client:
    """A client of the orchestrator that also publishes the events of a packer."""

    def __init__(self, settings: Settings) -> None:
        self._store = settings.store
        self._requestor = Requestor(settings.broker, exchanges=[requests_exchange, events_exchange])
        self._publisher = Publisher(settings.broker)

    def close(self) -> None:
        self._requestor.close()
        self._publisher.close()

    def ask(self, kind: str, **payload: object) -> bytes:
        return self._requestor.request(request_message(kind, payload), deadline=5).body

    def search(self, domain: str) -> dict[str, str]:
        found: dict[str, str] = json.loads(self.ask("search", domain=domain, q="words"))
        return found

    def routes(self) -> Routes | None:
        try:
            return read(Routes, self.ask("get_routes"))
        except RequestTimedOut:
            return None

    def route(self, domain: str) -> PackRoute:
        """Return the route of a domain, as soon as the orchestrator knows of it."""

        def find_route() -> PackRoute | None:
            routes = self.routes()
            return next((route for route in routes.routes if route.domain == domain), None) if routes else None

        found = eventually(find_route, f"{domain} is known")
        assert found is not None
        return found

    def pack(self, domain: str, *, size_mb: int, generation: int = 1) -> None:
        """Put a pack's manifest into the store; no actor asks for more."""
        manifest = Manifest(
            domain=domain,
            sha256=f"{domain}.{generation}",
            size=1,
            uncompressed_size=size_mb * MB,
            pages=3,
            schema_version=1,
            generation=generation,
            kind="full",
            built_at="2026-11-21T10:04:00+00:00",
            crawl_id="",
            etag="",
        )
        open_store(self._store).put(manifest_key(domain), manifest.to_json())

    def tell(self, kind: str, **payload: object) -> None:
        self._publisher.publish([event_message(kind, payload)])

    def placed(self, copies: int) -> Routes | None:
        """Return the routes once `copies` searchers serve each pack."""
        routes = self.routes()
        if routes and routes.settled and all(len(each.searchers) == copies for each in routes.routes):
            return routes
        return None


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    found = Client(settings)
    yield found
    found.close()


@contextmanager
def orchestrator(environment: Mapping[str, str], folder: Path, name: str = "orchestrator") -> Iterator[Worker]:
    queues = ("orchestrator",)
    own = {**environment, "HEARTBEAT": str(HEARTBEAT), "EVENT_RETRY_MS": "200"}
    with worker(own, folder / f"{name}.log", queues=queues, options=("--pool=solo",), concurrency=1) as running:
        yield running


def test_packs_are_placed_on_searchers_and_searches_reach_them(
    settings: Settings, environment: dict[str, str], client: Client, tmp_path: Path
) -> None:
    for domain in ("a.example", "b.example", "c.example"):
        client.pack(domain, size_mb=10)
    with orchestrator(environment, tmp_path), actors(settings, 100, 100, 100) as cast:
        eventually(
            lambda: client.placed(2) and [len(actor.domains) for actor in cast] == [2, 2, 2],
            "every pack is on two searchers, and each of them has as many",
        )

        holders = {actor.id for actor in cast if "a.example" in actor.domains}
        answers = [client.search("a.example") for _ in range(4)]
        assert {answer["by"] for answer in answers} == holders
        assert answers[0] | {"by": ""} == {"by": "", "domain": "a.example", "q": "words"}

        first = next(actor for actor in cast if "a.example" in actor.domains)
        first.stop()
        left = (holders - {first.id}).pop()
        # A searcher without a queue gets no second request: the request goes to the next one, and the pack to a third.
        assert client.search("a.example")["by"] == left
        assert client.search("a.example")["by"] != first.id
        eventually(lambda: client.placed(2), "every pack is on two searchers again")

        client.pack("a.example", size_mb=10, generation=2)
        client.tell("update", domain="a.example")
        eventually(lambda: client.route("a.example").generation == 2 and client.placed(2), "the update is loaded")

        open_store(settings.store).delete(manifest_key("b.example"))
        client.tell("update", domain="b.example")
        eventually(
            lambda: not any("b.example" in actor.domains for actor in cast if actor is not first), "it is forgotten"
        )
        assert read(ProblemReply, client.search("b.example")).reason == "pack-not-found"


def test_a_new_orchestrator_learns_the_placement_and_orders_nothing(
    settings: Settings, environment: dict[str, str], client: Client, tmp_path: Path
) -> None:
    for number in range(6):
        client.pack(f"{number}.example", size_mb=10)
    with actors(settings, 100, 100, 100) as cast:
        with orchestrator(environment, tmp_path, "first") as running:
            before = eventually(lambda: client.placed(2), "every pack is on two searchers")
            running.kill()
        orders = [list(actor.orders) for actor in cast]

        with orchestrator(environment, tmp_path, "second"):
            after = eventually(lambda: client.placed(2), "every pack is on two searchers")
            assert after is not None
            assert before is not None
            assert after.orchestrator != before.orchestrator
            assert [route.searchers for route in after.routes] == [route.searchers for route in before.routes]

            client.pack("new.example", size_mb=10)
            client.tell("update", domain="new.example")
            eventually(lambda: len(client.route("new.example").searchers) == 2, "what is new is placed")
            later = [order for actor, old in zip(cast, orders, strict=True) for order in actor.orders[len(old) :]]
            assert [(type(order), order.domain) for order in later] == [(Load, "new.example")] * 2


def test_an_empty_or_another_store_deletes_no_pack_from_a_searcher(
    settings: Settings, environment: dict[str, str], client: Client, tmp_path: Path
) -> None:
    for number in range(5):
        client.pack(f"{number}.example", size_mb=10)
    store, mounted = Path(settings.store.removeprefix("file://")), tmp_path / "not mounted"
    with actors(settings, 100) as (actor,):
        with orchestrator(environment, tmp_path, "first"):
            eventually(lambda: client.placed(1) and len(actor.domains) == 5, "every pack is placed")
        store.rename(mounted)
        store.mkdir()
        with orchestrator(environment, tmp_path, "second") as running:
            eventually(lambda: "no store in this folder" in running.log, "the empty folder is refused")
            create_store(settings.store)
            eventually(lambda: "lacks 5 of 5 known packs" in running.log, "the empty store is refused")
            assert client.search("4.example")["by"] == actor.id
            client.pack("new.example", size_mb=10)
            client.tell("update", domain="new.example")
            eventually(lambda: "new.example" in actor.domains, "a new pack is placed all the same")
            store.rename(tmp_path / "another")
            mounted.rename(store)
            client.pack("0.example", size_mb=10, generation=2)
            client.tell("update", domain="0.example")
            eventually(lambda: len(actor.orders) == 7, "the store is read again, and its new version is loaded")
        assert {type(order) for order in actor.orders} == {Load}


def test_undecodable_events_are_dead_lettered_and_an_unreachable_store_is_scanned_again(
    settings: Settings, environment: dict[str, str], client: Client, tmp_path: Path
) -> None:
    client.pack("a.example", size_mb=10)
    store = Path(settings.store.removeprefix("file://"))
    store.rename(tmp_path / "elsewhere")
    store.write_text("not a folder")
    with orchestrator(environment, tmp_path) as running, actors(settings, 100):
        client.tell("register", searcher_id="broken")
        client.tell("update", domain="not a domain/")
        broker = Broker(settings.broker)
        eventually(lambda: broker.depth("orchestrator.error") == 2, "both are buried")
        eventually(lambda: "Scan of the store failed" in running.log, "it reports the failed scan")
        routes = client.routes()
        assert routes is not None
        assert not routes.settled

        store.unlink()
        (tmp_path / "elsewhere").rename(store)
        eventually(lambda: client.placed(1), "it is placed")
