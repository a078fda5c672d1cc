"""Remove the messages of a queue that match a condition, and leave the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amqp.exceptions import NotFound

from app.broker.delivery import Delivery


def remove_messages(connection: Any, queue: str, matches: Callable[[Delivery], bool]) -> int:
    """Acknowledge the waiting messages of a queue that match, and return their number; 0 for a missing queue.

    Messages that a consumer holds, and those that arrive meanwhile, are not seen. The others go back to their places.
    Only for classic queues: a quorum queue counts this as one delivery of each message.
    """
    removed = 0
    with connection.channel() as channel:
        try:
            waiting = int(channel.queue_declare(queue, passive=True).message_count)
        except NotFound:
            return 0
        for _ in range(waiting):
            received = channel.basic_get(queue, no_ack=False)
            if received is None:
                break
            message = channel.message_to_python(received)
            if matches(Delivery.of(message, queue)):
                channel.basic_ack(message.delivery_tag)
                removed += 1
    return removed
