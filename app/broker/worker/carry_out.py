"""Carry out a decision: the only module that publishes replacements."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from ..delivery import Delivery
from ..policies.base import Dead, Decision, Drop, Postponed, Reject, Retry
from ..publishing import Outgoing, Publisher


class Disposition(Enum):
    """What the consumer does with the original message afterwards."""

    ACKNOWLEDGE = "acknowledge"
    #: Without requeue: the broker dead-letters the message.
    REJECT = "reject"


def carry_out(decision: Decision, delivery: Delivery, *, publisher: Publisher) -> Disposition:
    """Publish the replacement that the decision asks for, and return what to do with the original.

    Raises PublishFailed; the original must then stay unacknowledged.
    """
    match decision:
        case Retry(queue, key, _, headers) | Postponed(queue, key, _, headers) | Dead(queue, key, headers):
            publisher.declare([queue])
            publisher.publish([replacement(delivery, exchange=queue.exchange.name, routing_key=key, headers=headers)])
        case Reject():
            return Disposition.REJECT
        case Drop():
            pass
    return Disposition.ACKNOWLEDGE


def replacement(delivery: Delivery, *, exchange: str, routing_key: str, headers: Mapping[str, Any]) -> Outgoing:
    """Return the same message to publish: its body unchanged, `headers` added, the broker's own headers removed."""
    return Outgoing(
        exchange=exchange,
        routing_key=routing_key,
        body=delivery.body,
        headers=delivery.own_headers() | dict(headers),
        properties=delivery.kept_properties(),
        content_type=delivery.content_type,
        content_encoding=delivery.content_encoding,
    )
