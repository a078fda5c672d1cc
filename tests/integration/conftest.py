"""Fixtures of tests on one real service: requests on a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.broker.delivery import Delivery
from app.broker.rpc.requestor import Requestor
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
