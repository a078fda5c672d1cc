"""Which settings of a policy harm a queue, by the queue's own arguments."""

from __future__ import annotations

from typing import Any

import pytest

from app.topology.compare import harmful_settings
from app.topology.model import QueueDefinition, Replicas

pytestmark = pytest.mark.unit

QUORUM = {"x-queue-type": "quorum", "x-overflow": "reject-publish", "x-delivery-limit": 50}
DEAD = {"x-dead-letter-exchange": "site.dead"}


def consequences(arguments: dict[str, Any], **policy: Any) -> list[str]:
    definition = {key.replace("_", "-"): value for key, value in policy.items()}
    queue = QueueDefinition("q", True, arguments, definition, dict.fromkeys(definition, "policy trim"))
    return [consequence for _, consequence, _ in harmful_settings(queue)]


@pytest.mark.parametrize(
    ("arguments", "policy", "expected"),
    [
        ({}, {"expires": 5}, "deletes the queue with its messages"),
        ({}, {"message_ttl": 5}, "deletes messages that waited 5 ms"),
        (DEAD, {"message_ttl": 5}, "moves messages that waited 5 ms to site.dead"),
        ({"x-message-ttl": 9}, {"message_ttl": 5}, "ends the wait after 5 ms instead of 9 ms"),
        ({}, {"max_length": 5}, "deletes the oldest messages"),
        ({}, {"max_length_bytes": 5, "overflow": "reject-publish"}, "refuses messages when the queue is full"),
        (QUORUM, {"max_length": 5}, "refuses messages when the queue is full"),
        (QUORUM | DEAD, {"max_length": 5, "overflow": "drop-head"}, "moves the oldest messages when the queue is full"),
        (QUORUM, {"overflow": "drop-head"}, "at-most-once"),
        (QUORUM | DEAD, {"delivery_limit": 5}, "moves messages after 5 deliveries instead of 50 to site.dead"),
        (QUORUM, {"delivery_limit": 5}, "deletes messages after 5 deliveries instead of 50"),
        ({"x-dead-letter-exchange": ""}, {"max_length": 5}, "to the default exchange"),
    ],
)
def test_a_setting_that_deletes_or_moves_messages_is_named_with_its_consequence(
    arguments: dict[str, Any], policy: dict[str, Any], expected: str
) -> None:
    assert expected in consequences(arguments, **policy)[0]


@pytest.mark.parametrize(
    ("arguments", "policy"),
    [
        ({"x-message-ttl": 5}, {"message_ttl": 5}),
        ({"x-max-length": 1}, {"max_length": 2}),
        (QUORUM, {"delivery_limit": 50}),
        (QUORUM, {"overflow": "reject-publish"}),
        ({}, {"delivery_limit": 1}),
        (QUORUM, {"delivery_limit": -1}),
        ({"x-queue-type": "quorum"} | DEAD, {"delivery_limit": 50}),
        ({}, {"overflow": "drop-head"}),
        ({}, {"ha_mode": "all", "queue_mode": "lazy", "dead_letter_exchange": "x"}),
    ],
)
def test_a_setting_that_is_no_lower_than_the_argument_or_without_effect_is_harmless(
    arguments: dict[str, Any], policy: dict[str, Any]
) -> None:
    assert consequences(arguments, **policy) == []


def test_the_members_of_a_queue_that_do_not_run_are_missing() -> None:
    assert Replicas(("a", "b", "c"), ("a", "c")).missing == ("b",)
    assert Replicas(("a",), ()).missing == ("a",)
