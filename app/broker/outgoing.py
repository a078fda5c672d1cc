"""A message to publish, and its form on the wire."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import amqp_internals
from .delivery import Delivery, own_headers
from .errors import InvalidMessage
from .headers import DELIVERIES

#: Bytes of a content header's frame besides the properties: frame header, class, weight, body size and frame end.
_FRAME_OVERHEAD = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One message to publish. The body is sent unchanged."""

    exchange: str
    routing_key: str
    body: bytes
    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    content_type: str | None = "application/json"
    content_encoding: str | None = "utf-8"
    #: Whether an unroutable message is an error. An event without subscribers is not an error.
    mandatory: bool = True

    @classmethod
    def copy_of(
        cls,
        delivery: Delivery,
        *,
        exchange: str,
        routing_key: str,
        headers: Mapping[str, Any],
        properties: Mapping[str, Any] | None = None,
    ) -> Outgoing:
        """Return a delivered message to publish again, with other headers. It keeps its body and what describes it."""
        return cls(
            exchange=exchange,
            routing_key=routing_key,
            body=delivery.body,
            headers=headers,
            properties=delivery.kept_properties() if properties is None else properties,
            content_type=delivery.content_type,
            content_encoding=delivery.content_encoding,
        )

    @classmethod
    def replacing(cls, delivery: Delivery, *, exchange: str, routing_key: str, headers: Mapping[str, Any]) -> Outgoing:
        """Return the message that replaces a delivered one: `headers` added, those of the broker removed.

        The count of unacknowledged deliveries is removed, too: a message is replaced after a run that ended.
        """
        own = {name: value for name, value in own_headers(delivery.headers).items() if name != DELIVERIES}
        return cls.copy_of(delivery, exchange=exchange, routing_key=routing_key, headers=own | dict(headers))


def wire_message(channel: Any, message: Outgoing) -> Any:
    """Return a channel's message: persistent and with a new message id, unless its properties say otherwise.

    Raises what py-amqp raises for headers that it cannot encode, and InvalidMessage for headers that are too large.
    """
    properties = {"delivery_mode": 2, **message.properties}
    if "message_id" not in properties:
        properties["message_id"] = str(uuid.uuid4())
    priority = properties.pop("priority", None)
    wire = channel.prepare_message(
        message.body,
        priority=priority,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        headers=dict(message.headers),
        properties=properties,
    )
    size, limit = amqp_internals.encode_properties(wire), channel.connection.frame_max - _FRAME_OVERHEAD
    if size > limit:
        # The broker would close the connection, and not confirm what was sent before on it.
        raise InvalidMessage(f"headers and properties of {size} bytes: a frame of the broker has room for {limit}")
    return wire
