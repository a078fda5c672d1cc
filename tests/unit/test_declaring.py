"""When a refused queue is declared again, and what the broker's refusal says."""

from __future__ import annotations

from functools import partial

import pytest
from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed
from kombu import Queue

from app.broker.connection import NodesConnection, backoff, broker_name, tls_options
from app.broker.declaring import RefusedDeclaration, node_down

pytestmark = pytest.mark.unit

DOWN = "NOT_FOUND - home node 'rabbit@one' of durable queue 'site.dead' in vhost '/' is down or inaccessible"


def test_each_failure_doubles_the_backoff_up_to_a_limit_with_half_of_it_at_random() -> None:
    pauses = partial(backoff, first=1.0, longest=30.0)
    assert [pauses(failures, jitter=1) for failures in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]
    assert [pauses(failures, jitter=0) for failures in range(1, 8)] == [0.5, 1, 2, 4, 8, 15, 15]
    assert all(15 <= pauses(1_000_000) <= 30 for _ in range(20))


def test_only_a_queue_whose_node_is_down_has_a_node() -> None:
    assert node_down(NotFound(DOWN)) == "rabbit@one"
    assert node_down(NotFound("NOT_FOUND - no queue 'site.dead' in vhost '/'")) == ""
    assert node_down(AccessRefused(DOWN)) == node_down(OSError(DOWN)) == ""


def test_a_refusal_says_what_becomes_of_the_queue() -> None:
    queue = Queue("site.dead")
    assert str(RefusedDeclaration(queue, NotFound(DOWN))) == "its node rabbit@one is down; it returns with that node"
    other = RefusedDeclaration(queue, PreconditionFailed("PRECONDITION_FAILED - inequivalent arg 'x-queue-type'"))
    assert (other.differs, str(other)) == (True, "inequivalent arg 'x-queue-type'")


def test_each_node_of_a_list_has_its_certificate_checked_by_its_own_name() -> None:
    connection = NodesConnection("amqps://u:p@one.example//;amqps://u:p@two.example//", ssl=True)
    connection.switch("amqps://u:p@two.example//")
    assert (connection.hostname, connection.ssl) == ("two.example", {"server_hostname": "two.example"})
    assert tls_options("amqps://one.example//;amqps://two.example//") == {"server_hostname": "one.example"}


def test_the_name_of_a_broker_has_every_node_and_no_password() -> None:
    name = broker_name("amqp://u:secret@one.example:5672//;amqp://u:secret@two.example:5672//")
    assert "secret" not in name
    assert "one.example" in name
    assert "two.example" in name
