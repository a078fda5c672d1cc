"""Dead letters that are moved: a copy for the other queue, or for the same one again, and the letter as it was."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from amqp.serialization import dumps

from ..delivery import Delivery
from ..headers import DEAD_ID, MOVED_FROM
from ..outgoing import Outgoing

_EXCHANGE, _ROUTING_KEY, _PROPERTIES = "exchange", "routing-key", "properties"


def moved_copy(delivery: Delivery, exchange: str, queue: str) -> Outgoing:
    """Return a letter for a queue that is bound to the exchange by its name. A header has what the move changes."""
    return Outgoing.copy_of(delivery, exchange=exchange, routing_key=queue, headers=_with_origin(delivery))


def restored_copy(delivery: Delivery, exchange: str) -> Outgoing:
    """Return a letter for the exchange of its dead set. If it came by another one, a header has what changes."""
    headers = delivery.headers if delivery.exchange == exchange else _with_origin(delivery)
    return Outgoing.copy_of(delivery, exchange=exchange, routing_key=delivery.routing_key, headers=headers)


def as_before_move(delivery: Delivery) -> Delivery:
    """Return a letter as it was before it was moved; one that was not moved is returned as it is."""
    moved = delivery.headers.get(MOVED_FROM)
    if not isinstance(moved, Mapping):
        return delivery
    headers = {name: value for name, value in delivery.headers.items() if name != MOVED_FROM}
    properties = moved.get(_PROPERTIES)
    return replace(
        delivery,
        headers=headers,
        properties={
            **(properties if isinstance(properties, Mapping) else _own_properties(delivery.properties)),
            "application_headers": headers,
        },
        exchange=str(moved.get(_EXCHANGE, "")),
        routing_key=str(moved.get(_ROUTING_KEY, "")),
    )


def _with_origin(delivery: Delivery) -> dict[str, Any]:
    """Return the headers of a letter, and where and how it came."""
    moved = {
        _EXCHANGE: delivery.exchange,
        _ROUTING_KEY: delivery.routing_key,
        _PROPERTIES: _own_properties(delivery.properties),
    }
    return {**delivery.headers, MOVED_FROM: moved}


def fingerprint(delivery: Delivery) -> bytes | None:
    """Return a hash of a letter's whole content, or None for one without any id: others may have equal content.

    Two letters with equal fingerprints are copies of one message.
    """
    properties = _own_properties(delivery.properties)
    if not (delivery.headers.get(DEAD_ID) or properties.get("message_id") or properties.get("correlation_id")):
        return None
    digest = hashlib.blake2b(dumps("FF", [dict(delivery.headers), properties]), digest_size=16)
    for part in (delivery.exchange.encode(), delivery.routing_key.encode(errors="replace"), delivery.body):
        digest.update(part + b"\0")
    return digest.digest()


def _own_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties without the headers, which kombu keeps among them."""
    return {name: properties[name] for name in sorted(properties) if name != "application_headers"}
