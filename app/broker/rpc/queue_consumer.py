"""Consume one queue in the caller's thread, and reconnect with backoff whenever the broker is away."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kombu import Consumer, Queue
from kombu.exceptions import OperationalError

from ..connection import CONNECTION_ERRORS, backoff, connection_to
from ..delivery import Delivery

logger = logging.getLogger(__name__)

#: Seconds before an attempt to reconnect: after the first failure, and at most.
_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.1, 5.0
#: Seconds that bound each read and write, and AMQP's heartbeat.
_TIMEOUT, _HEARTBEAT = 5.0, 10.0
#: Seconds between two calls of `until` while no message arrives.
_POLL = 0.25
#: Seconds between two heartbeat checks.
_HEARTBEAT_CHECK = 1.0


class QueueConsumer:
    """Consumes a queue that belongs to this process alone, without acknowledgements.

    A connection that broke without a TCP reset stays open on the broker for some heartbeats. The broker would send it
    half of the messages. Each reconnection therefore deletes the queue before it declares it again.
    """

    def __init__(
        self,
        url: str,
        queue: Queue,
        *,
        declare: Callable[[Any], None],
        on_delivery: Callable[[Delivery], None],
        on_connected: Callable[[], None],
    ) -> None:
        """Prepare a consumer; `run` connects.

        `declare` declares on each new connection what the process relies on besides the queue. It may raise an
        ApplicationError, which ends `run`. `on_connected` is called whenever the queue is consumed from again.
        """
        self._connection = connection_to(url, timeout=_TIMEOUT, heartbeat=_HEARTBEAT)
        self._queue = queue
        self._declare = declare
        self._on_delivery = on_delivery
        self._on_connected = on_connected
        self._consumer: Consumer | None = None
        self._has_consumed = False
        self._checked_at = 0.0

    @property
    def connected(self) -> bool:
        """Whether the queue is consumed from, as far as this process knows."""
        return self._consumer is not None

    def run(self, until: Callable[[], bool]) -> None:
        """Consume until `until` returns true; it is called after each message and at least four times a second."""
        failures = 0
        while not until():
            try:
                if self._consumer is None:
                    self._connect()
                    failures = 0
                with suppress(TimeoutError):
                    self._connection.drain_events(timeout=_POLL)
                now = time.monotonic()
                if now - self._checked_at > _HEARTBEAT_CHECK:
                    self._checked_at = now
                    self._connection.heartbeat_check()
            except (*CONNECTION_ERRORS, OperationalError) as error:
                failures += 1
                pause = backoff(failures, first=_FIRST_BACKOFF, longest=_LONGEST_BACKOFF)
                logger.warning("Connection to consume %s lost, again in %.2f s: %r", self._queue.name, pause, error)
                self._disconnect()
                end = time.monotonic() + pause
                while not until() and (left := end - time.monotonic()) > 0:
                    time.sleep(min(left, _POLL))

    def close(self) -> None:
        """Cancel the consumer, which deletes an auto-delete queue, and close the connection."""
        if self._consumer is not None:
            with suppress(*CONNECTION_ERRORS):
                self._consumer.cancel()
        self._disconnect()

    def _connect(self) -> None:
        def ignore(message: Any, error: Exception) -> None:
            logger.warning("Message of %s ignored: %r: %.100r", self._queue.name, error, message.body)

        def on_message(message: Any) -> None:
            try:
                self._on_delivery(Delivery.of(message, self._queue.name))
            except Exception as error:  # noqa: BLE001 - One invalid message must not stop the process.
                ignore(message, error)

        self._connection.connect()
        self._declare(self._connection)
        channel = self._connection.channel()
        if self._has_consumed:
            channel.queue_delete(self._queue.name)
        consumer = Consumer(channel, [self._queue], no_ack=True, on_message=on_message)
        consumer.on_decode_error = ignore
        consumer.consume()
        self._consumer, self._has_consumed = consumer, True
        self._on_connected()

    def _disconnect(self) -> None:
        self._consumer = None
        self._connection.collect(socket_timeout=1)
