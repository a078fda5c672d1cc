"""Answers every request at once with as many bytes as an answer has: what the broker and two clients alone take."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from amqp import Message
from kombu import Connection

QUEUE = "bench.echo"
#: Bytes of an answer with ten hits.
SIZE = 6_000


def main() -> None:
    """Echo until killed; say when it begins."""
    with Connection(os.environ["BROKER_URL"]) as connection:
        channel = connection.channel()
        connection.connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel.queue_declare(QUEUE, auto_delete=True)
        channel.basic_consume(QUEUE, no_ack=True, callback=lambda message: _answer(channel, message))
        sys.stdout.write("echo is ready.\n")
        sys.stdout.flush()
        while True:
            connection.drain_events()


def _answer(channel: Any, message: Any) -> None:
    asked = message.properties
    answer = Message(b"x" * SIZE, correlation_id=asked["correlation_id"], content_type="application/json")
    channel.basic_publish(answer, exchange="", routing_key=asked["reply_to"])


if __name__ == "__main__":
    main()
