"""A message as consumed: a retry policy decides on it, and a replacement is made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Headers that the broker adds. A replacement starts without them: they count deaths and deliveries of one message.
#: RabbitMQ before 4.0 also believes an `x-death` that a client sends, and drops such a message as a loop.
BROKER_HEADERS = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count")

#: Headers with further routing keys, by which a producer sends copies (RabbitMQ, "Sender-selected Distribution"). With
#: them, each replacement and each end of a wait would send the copies again.
_COPY_HEADERS = ("CC", "BCC")

#: Properties that a replacement keeps. Not the expiration: the delay queue sets the wait. Not the user id either: the
#: broker accepts only that of the connection, and would refuse every replacement with another user's.
KEPT_PROPERTIES = ("correlation_id", "reply_to", "priority", "message_id", "type", "timestamp", "app_id")


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of one message: raw body, headers and properties unchanged, and the queue it was consumed from.

    `exchange` and `routing_key` are those of its last hop. The key of the default exchange is a queue's name. After a
    wait the exchange is the one to which the delay queue dead-letters.
    """

    body: bytes
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    content_type: str | None
    content_encoding: str | None
    queue: str
    routing_key: str = ""
    exchange: str = ""
    #: Whether the broker delivered the message before, to a consumer that did not acknowledge it. Two deliveries of one
    #: message are equal, so it is not compared.
    redelivered: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, message: Any, queue: str) -> Delivery:
        """Return the delivery of a kombu message; later changes of the message do not change it.

        If kombu has decompressed the body, the `compression` header is left out.
        """
        headers = dict(message.headers or {})
        if not message.errors:
            headers.pop("compression", None)
        return cls(
            body=raw_body(message.body, message.content_encoding),
            headers=headers,
            properties=dict(message.properties or {}),
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            queue=queue,
            routing_key=message.delivery_info.get("routing_key") or "",
            exchange=message.delivery_info.get("exchange") or "",
            redelivered=bool(message.delivery_info.get("redelivered")),
        )

    def kept_properties(self) -> dict[str, Any]:
        """Return the properties that a replacement keeps."""
        return {name: self.properties[name] for name in KEPT_PROPERTIES if self.properties.get(name) is not None}


def own_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message's headers without those of the broker, and those that send copies."""
    return {
        name: value
        for name, value in headers.items()
        if not name.startswith(BROKER_HEADERS) and name not in _COPY_HEADERS
    }


def raw_body(body: Any, encoding: str | None) -> bytes:
    """Return the bytes of a body, which py-amqp decodes if its content encoding names a charset."""
    if not isinstance(body, str):
        return bytes(body or b"")
    try:
        return body.encode(encoding or "utf-8")
    except (LookupError, UnicodeError):
        return body.encode("utf-8", "surrogatepass")


def is_held(message: Any) -> bool:
    """Return whether a kombu message can still be acknowledged: after a lost channel the broker delivers it again."""
    return bool(message.channel is not None and message.channel.is_open)


def original_delivery(message: Any) -> Delivery:
    """Return the delivery of a message; if the consumer translated it, that of the message before."""
    original: Delivery | None = getattr(message, "original", None)
    return original or Delivery.of(message, message.delivery_info["queue"])
