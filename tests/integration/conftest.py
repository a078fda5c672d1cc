"""Fixtures of tests on one real service: requests on a real broker, and a broker with the whole topology."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection

from app.broker.delivery import Delivery
from app.broker.rpc.requestor import Requestor
from app.topology.declare import declare_all
from config.settings import Settings
from tests.support.answering import ByHand, consumed


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
    with Connection(settings.broker, connect_timeout=5) as connection:
        yield connection


@pytest.fixture
def declared(settings: Settings, connection: Any) -> Settings:
    """Return the settings of a broker that has everything that they declare."""
    assert not declare_all(connection, settings)
    return settings
