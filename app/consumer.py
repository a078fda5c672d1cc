"""The worker's consumer: plain messages become tasks."""

from __future__ import annotations

from typing import Any

from app.amqp.delivery import Delivery
from app.amqp.plain import to_envelope
from app.retry import consumer
from app.topology import declare_all
from config.settings import get_settings


class Consumer(consumer.Consumer):
    """The consumer of app/retry, for messages of producers that never heard of Celery, too."""

    def declare(self, channel: Any) -> None:
        """Declare all that stands on our broker."""
        declare_all(channel, get_settings())

    def to_task(self, message: Any) -> None:
        """Turn a plain kombu message into Celery's, in place, and keep it as it came.

        Raises Undecodable or UnknownType.
        """
        message.original = Delivery.of(message, message.delivery_info["queue"])
        envelope = to_envelope(message.original)
        message.headers = envelope.headers
        message.body = envelope.body
        message.content_type, message.content_encoding = "application/json", "utf-8"
        message.properties.setdefault("correlation_id", envelope.id)
        message._decoded_cache = None
