"""Fixtures of tests on real services: broker, publisher, requests, Redis, and the context of a worker's process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from kombu import Connection
from redis import Redis

from app.broker.delivery import Delivery
from app.broker.publishing import Publisher
from app.broker.rpc.requestor import Requestor
from app.private_services import Urls
from app.redis_state.client import get_redis
from app.topology.declare import declare_all
from config.settings import Settings
from tasks.base import Context
from tests.servers.s3 import S3Server, s3_server
from tests.support import dead
from tests.support.answering import ByHand, consumed
from tests.support.broker import Broker
from tests.support.corner import own_vhost
from tests.support.declared import DeclaredVhost
from tests.support.operators import operated, with_operators
from tests.support.task_context import task_context


@pytest.fixture(scope="session")
def declared_vhost(services: Urls) -> Iterator[DeclaredVhost]:
    """Yield the vhost that tests of this process have after each other."""
    vhost = DeclaredVhost(services)
    yield vhost
    vhost.close()


@pytest.fixture(scope="session")
def vhost_of_dead_sets(services: Urls) -> Iterator[DeclaredVhost]:
    """Yield a vhost with a dead set of each policy, for the tests of this process that have no other topology."""
    vhost = DeclaredVhost(services, dead.declare)
    yield vhost
    vhost.close()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """Yield a server that the tests of this process share: each has names of its own in it."""
    with s3_server() as server:
        yield server


@pytest.fixture
def broker_url(services: Urls, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the AMQP URL of a vhost, private to this test, with the topology for a test that has it declared."""
    names = {"process": "declared_vhost", "declared": "declared_vhost", "vhost_of_dead_sets": "vhost_of_dead_sets"}
    lent = next((vhost for name, vhost in names.items() if name in request.fixturenames), "")
    with request.getfixturevalue(lent).lent() if lent else own_vhost(services) as url:
        yield url


@pytest.fixture
def process(environment: dict[str, str], settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    """Return the context of this process as in a worker, with the settings of the test."""
    monkeypatch.setattr("tasks.ticks.STALLED", 1)
    with task_context(environment, settings, monkeypatch) as context:
        assert context.run_id.change()
        context.run_id.note()
        yield context


@pytest.fixture
def broker(settings: Settings) -> Broker:
    return Broker(settings.broker)


@pytest.fixture
def publisher(broker_url: str) -> Iterator[Publisher]:
    publisher = Publisher(broker_url, timeout=60)
    yield publisher
    publisher.close()


@pytest.fixture
def redis(redis_url: str) -> Redis:
    return get_redis(redis_url)


@pytest.fixture
def requestor(broker_url: str) -> Iterator[Requestor]:
    requestor = Requestor(broker_url)
    yield requestor
    requestor.close()


@pytest.fixture
def taken(broker_url: str) -> Iterator[list[Delivery]]:
    """Return the requests that arrived; only the test replies to them."""
    deliveries: list[Delivery] = []
    with consumed(broker_url, deliveries.append):
        yield deliveries


@pytest.fixture
def by_hand(broker_url: str) -> Iterator[ByHand]:
    hand = ByHand(broker_url)
    yield hand
    hand.close()


@pytest.fixture
def connection(settings: Settings) -> Iterator[Any]:
    with Connection(settings.broker, connect_timeout=60) as connection:
        yield connection


@pytest.fixture
def declared(settings: Settings, connection: Any) -> Settings:
    """Return the settings of a broker that has everything that they declare."""
    assert not declare_all(connection, settings)
    return settings


@pytest.fixture
def operable(declared: Settings) -> Settings:
    """Return settings with operators, of a broker that has everything that they declare."""
    return with_operators(declared)


@pytest.fixture
def client(operable: Settings) -> Iterator[httpx.Client]:
    """Yield a client that has logged in to the operations page."""
    with operated(operable) as client:
        yield client
