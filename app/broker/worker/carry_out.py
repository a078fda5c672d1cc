"""Carries a decision out: the one place that publishes a replacement, and says how the original is to be settled."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from ..delivery import Delivery
from ..policies.base import Dead, Decision, Drop, Postponed, Reject, Retry
from ..publishing import Outgoing, Publisher


class Disposition(Enum):
    """What the consumer then does with the original."""

    ACKNOWLEDGE = "acknowledge"
    #: Without requeue: the broker dead-letters it.
    REJECT = "reject"


def carry_out(decision: Decision, delivery: Delivery, *, publisher: Publisher) -> Disposition:
    """Publish what the decision asks for, confirmed; raises PublishFailed, and then nothing may be settled."""
    match decision:
        case Retry(queue, key, _, headers) | Postponed(queue, key, _, headers) | Dead(queue, key, headers):
            publisher.declare([queue])
            again = replacement(delivery, exchange=queue.exchange.name, routing_key=key, headers=headers)
            publisher.publish([again])
        case Reject():
            return Disposition.REJECT
        case Drop():
            pass
    return Disposition.ACKNOWLEDGE


def replacement(delivery: Delivery, *, exchange: str, routing_key: str, headers: Mapping[str, Any]) -> Outgoing:
    """Return the message again, body untouched, the broker's headers stripped, others added."""
    return Outgoing(
        exchange=exchange,
        routing_key=routing_key,
        body=delivery.body,
        headers=delivery.own_headers() | dict(headers),
        properties=delivery.kept_properties(),
        content_type=delivery.content_type,
        content_encoding=delivery.content_encoding,
    )
