"""A plain AMQP client for tests: queue depths, messages, and publishing as a foreign client would."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from amqp import Message
from kombu import Connection

from app.broker.connection import CONNECTION_ERRORS


class Broker:
    """A plain AMQP client. It keeps one connection between calls, and opens another one when that broke."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def depth(self, queue: str) -> int:
        """Return how many messages are ready in a queue."""
        with self._channel() as channel:
            return int(channel.queue_declare(queue, passive=True).message_count)

    def depths(self, queues: Iterable[str]) -> list[int]:
        """Return how many messages are ready in each queue."""
        with self._channel() as channel:
            return [int(channel.queue_declare(queue, passive=True).message_count) for queue in queues]

    def consumers(self, queue: str) -> int:
        """Return how many consumers a queue has. The broker requeues a dead consumer's messages before it drops out."""
        with self._channel() as channel:
            return int(channel.queue_declare(queue, passive=True).consumer_count)

    def post(self, body: bytes, *, exchange: str = "site", key: str = "index", **properties: Any) -> None:
        """Publish raw bytes with nothing but the given properties, as a producer that does not use Celery."""
        if "headers" in properties:
            properties["application_headers"] = properties.pop("headers")
        message = Message(body, **properties)
        with self._channel() as channel:
            channel.basic_publish_confirm(message, exchange=exchange, routing_key=key, mandatory=True, timeout=30)

    def bind_new(self, queue: str, *, exchange: str = "", key: str = "") -> None:
        """Declare a new queue, or bind an existing one to a new topic exchange."""
        with self._channel() as channel:
            if exchange:
                channel.exchange_declare(exchange, "topic", durable=True, auto_delete=False)
                channel.queue_bind(queue, exchange, key)
            else:
                channel.queue_declare(queue, durable=True, auto_delete=False)

    def take(self, queue: str) -> list[Any]:
        """Remove and return every ready message of a queue."""
        taken = []
        with self._channel() as channel:
            while (message := channel.basic_get(queue, no_ack=True)) is not None:
                taken.append(channel.message_to_python(message))
        return taken

    def peek(self, queue: str) -> list[Any]:
        """Return every ready message of a queue. They are requeued in order when the channel closes."""
        with self._channel() as channel:
            seen = iter(lambda: channel.basic_get(queue, no_ack=False), None)
            return [channel.message_to_python(message) for message in seen]

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        with self._lock, self._open_channel() as channel:
            yield channel

    def _open_channel(self) -> Any:
        if self._connection is not None:
            try:
                return self._connection.channel()
            except CONNECTION_ERRORS:  # The broker was killed, or the vhost was deleted.
                self._connection.collect(socket_timeout=1)
        self._connection = Connection(self._url, connect_timeout=60)
        weakref.finalize(self, self._connection.collect, 1)
        return self._connection.channel()


def given_arguments(queue: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with which a queue of the management API was declared: RabbitMQ 4 adds the default type."""
    return {name: value for name, value in queue["arguments"].items() if (name, value) != ("x-queue-type", "classic")}
