"""A responder on a queue of its own, and a client that answers by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from amqp import Message
from kombu import Connection

from app.broker.connection import CONNECTION_ERRORS
from app.broker.delivery import Delivery
from app.broker.outgoing import Outgoing
from tests.support.raw import Raw

QUEUE = "answers"


def ask(body: bytes = b'{"type": "echo"}', *, queue: str = QUEUE, **properties: Any) -> Outgoing:
    """Return a request to a queue, through the default exchange."""
    return Outgoing(exchange="", routing_key=queue, body=body, properties=properties)


@contextmanager
def consumed(url: str, take: Callable[[Delivery], None], *, queue: str = QUEUE, exists: bool = False) -> Iterator[None]:
    """Give every message of a queue to `take`, in a thread, for the block; the queue is declared unless it exists."""
    done, ready = threading.Event(), threading.Event()

    def consume() -> None:
        with Connection(url, connect_timeout=60) as connection, connection.channel() as channel:

            def on_message(message: Any) -> None:
                take(Delivery.of(channel.message_to_python(message), queue))

            channel.queue_declare(queue, passive=exists, auto_delete=True)
            channel.basic_consume(queue, no_ack=True, callback=on_message)
            ready.set()
            while not done.is_set():
                with suppress(TimeoutError):
                    connection.drain_events(timeout=0.05)

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield
    finally:
        done.set()
        thread.join(30)


class ByHand:
    """A client that replies only when a test calls `reply`, as often as it does."""

    def __init__(self, url: str) -> None:
        self._connection = Connection(url, connect_timeout=60)
        self._channel = self._connection.channel()

    def reply(self, delivery: Delivery, body: bytes) -> None:
        """Reply to a request."""
        properties = {"correlation_id": delivery.properties["correlation_id"]}
        self._channel.basic_publish(
            Message(body, **properties), exchange="", routing_key=delivery.properties["reply_to"]
        )

    def reply_with(self, delivery: Delivery, properties: bytes) -> None:
        """Reply to a request with encoded properties, as no client library would send them."""
        self._channel.basic_publish(Raw(b"", properties), exchange="", routing_key=delivery.properties["reply_to"])

    def close(self) -> None:
        """Close the connection."""
        with suppress(*CONNECTION_ERRORS):
            self._connection.release()
