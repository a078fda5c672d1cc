"""Carry out a decision: publish the replacement, say how to answer."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from celery.utils.log import get_logger

from ..delivery import Delivery
from ..headers import DELIVERIES
from ..policies.base import Dead, Decision, Drop, Postponed, Reject, Retry
from ..publishing import Outgoing, Publisher

logger = get_logger(__name__)


class Disposition(Enum):
    """What the consumer does with the original message afterwards."""

    ACKNOWLEDGE = "acknowledge"
    #: Without requeue: the broker dead-letters the message.
    REJECT = "reject"


def carry_out(decision: Decision, message: Outgoing | None, *, publisher: Publisher) -> Disposition:
    """Publish the replacement of a decision, if it has one, and return what to do with the original.

    Raises PublishFailed; the original must then stay unacknowledged. A second attempt passes the same object `message`,
    so that one that arrived late is not sent twice.
    """
    match decision:
        case Retry(queue) | Postponed(queue) | Dead(queue) if message:
            publisher.declare([queue])
            publisher.publish([message])
        case Reject(queue):
            # Without it the broker drops what is rejected on a classic queue, and holds back that of a quorum queue.
            if publisher.declare_if_missing(queue):
                logger.warning("Queue %s was missing and is declared again", queue.name)
            return Disposition.REJECT
    return Disposition.ACKNOWLEDGE


def message_of(decision: Decision, delivery: Delivery) -> Outgoing | None:
    """Return the message that a decision publishes in place of the delivered one, or None if it publishes nothing."""
    match decision:
        case Retry(queue, key, _, headers) | Postponed(queue, key, _, headers) | Dead(queue, key, headers):
            return replacement(delivery, exchange=queue.exchange.name, routing_key=key, headers=headers)
        case Reject() | Drop():
            return None


def replacement(delivery: Delivery, *, exchange: str, routing_key: str, headers: Mapping[str, Any]) -> Outgoing:
    """Return the same message to publish: its body unchanged, `headers` added, the broker's own headers removed.

    The count of unacknowledged deliveries is removed, too: a message is replaced after a run that ended.
    """
    own = {name: value for name, value in delivery.own_headers().items() if name != DELIVERIES}
    return Outgoing(
        exchange=exchange,
        routing_key=routing_key,
        body=delivery.body,
        headers=own | dict(headers),
        properties=delivery.kept_properties(),
        content_type=delivery.content_type,
        content_encoding=delivery.content_encoding,
    )
