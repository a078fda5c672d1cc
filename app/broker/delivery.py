"""A message as it came: what a retry policy looks at and what a replacement is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Headers that the broker adds. RabbitMQ before 4.0 believes an `x-death` that a client sends and drops such a message
#: as a loop; counts of the broker belong to one life of a message, so a replacement starts without them.
BROKER_HEADERS = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count")

#: Properties that a replacement keeps. Expiration is left out: the wait is the delay queue's. So is the user id, which
#: the broker lets nobody give but that user itself: a replacement with another's would be refused for ever.
KEPT_PROPERTIES = ("correlation_id", "reply_to", "priority", "message_id", "type", "timestamp", "app_id")


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of one message: raw body, headers and properties unchanged, and the queue it was consumed from.

    `exchange` and `routing_key` are those of its last way through the broker: the default exchange's key is a queue's
    name, and after a wait the exchange is the one that the delay queue gives its messages back to.
    """

    body: bytes
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    content_type: str | None
    content_encoding: str | None
    queue: str
    routing_key: str = ""
    exchange: str = ""

    @classmethod
    def of(cls, message: Any, queue: str) -> Delivery:
        """Take the parts of a kombu message; later changes of the message do not change the delivery.

        A compressed body has been decompressed by kombu, and loses the header that says otherwise.
        """
        headers = dict(message.headers or {})
        if not message.errors:
            headers.pop("compression", None)
        return cls(
            body=as_it_came(message.body, message.content_encoding),
            headers=headers,
            properties=dict(message.properties or {}),
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            queue=queue,
            routing_key=message.delivery_info.get("routing_key") or "",
            exchange=message.delivery_info.get("exchange") or "",
        )

    def own_headers(self) -> dict[str, Any]:
        """Return the headers without those of the broker."""
        return {name: value for name, value in self.headers.items() if not name.startswith(BROKER_HEADERS)}

    def kept_properties(self) -> dict[str, Any]:
        """Return the properties that a replacement carries on."""
        return {name: self.properties[name] for name in KEPT_PROPERTIES if self.properties.get(name) is not None}


def as_it_came(body: Any, encoding: str | None) -> bytes:
    """Return the bytes of a body; py-amqp has made a text of one whose content encoding names a charset."""
    if not isinstance(body, str):
        return bytes(body or b"")
    try:
        return body.encode(encoding or "utf-8")
    except (LookupError, UnicodeError):
        return body.encode("utf-8", "surrogatepass")


def delivery_of(message: Any) -> Delivery:
    """Return the message as it came: kept by the consumer where it was translated, taken from it otherwise."""
    original: Delivery | None = getattr(message, "original", None)
    return original or Delivery.of(message, message.delivery_info["queue"])
