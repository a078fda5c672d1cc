"""Reply to every request at once, with the size of a search reply: the time of the broker and two clients alone."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from amqp import Message
from kombu import Connection

QUEUE = "bench.echo"
#: Bytes of a search reply with ten hits.
SIZE = 6_000


def main() -> None:
    """Reply until killed. Print a line when ready."""
    with Connection(os.environ["BROKER_URL"]) as connection:
        channel = connection.channel()
        connection.connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel.queue_declare(QUEUE, auto_delete=True)
        channel.basic_consume(QUEUE, no_ack=True, callback=lambda message: _reply(channel, message))
        sys.stdout.write("echo is ready.\n")
        sys.stdout.flush()
        while True:
            connection.drain_events()


def _reply(channel: Any, message: Any) -> None:
    properties = message.properties
    reply = Message(b"x" * SIZE, correlation_id=properties["correlation_id"], content_type="application/json")
    channel.basic_publish(reply, exchange="", routing_key=properties["reply_to"])


if __name__ == "__main__":
    main()
