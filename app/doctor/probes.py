"""Proofs by doing: what the no-loss properties rest on is tried on queues of our own, which are gone afterwards."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kombu import Exchange, Queue

from app.broker.errors import PublishFailed
from app.broker.policies.waiting import QueueType, delay_queue
from app.broker.publishing import Outgoing, Publisher

#: What every name of ours begins with here.
_PREFIX = "perennial.doctor."

#: Milliseconds that a message waits for its TTL to run out, and seconds that it may take to come back.
_TTL_MS, _PATIENCE = 200, 20.0

#: Milliseconds after which a queue that a killed doctor left behind is gone.
_EXPIRES_MS = 60_000


def confirmed(connection: Any, publisher: Publisher) -> bool:
    """Return whether a message that has a queue is confirmed; raises PublishFailed where it is not."""
    with _exclusive(connection, {}) as name:
        publisher.publish([_to(name)])
        return True


def unroutable_is_told(publisher: Publisher) -> bool:
    """Return whether the publisher learns of a message that no queue is bound for: confirms alone do not tell."""
    return _fails(publisher, _to(_name()))


def full_is_told(connection: Any, publisher: Publisher) -> bool:
    """Return whether the publisher learns that a full `reject-publish` queue did not take a message."""
    with _exclusive(connection, {"x-max-length": 1, "x-overflow": "reject-publish"}) as name:
        publisher.publish([_to(name)])
        return _fails(publisher, _to(name))


def comes_back(connection: Any, publisher: Publisher, queue_type: QueueType) -> tuple[bool, float]:
    """Let a message wait in a delay queue; return whether it came back with its routing key, and after how long.

    The queue is declared as every delay queue is, but for a TTL of its own, in case nobody lives to delete it.
    """
    name = _name()
    waiting = delay_queue(name, _TTL_MS, back_to=name, queue_type=queue_type)
    waiting.queue_arguments["x-expires"] = _EXPIRES_MS
    with connection.channel() as channel, _exclusive(connection, {}) as home:
        try:
            Exchange(name, type="direct", durable=False, auto_delete=True)(channel).declare()
            channel.queue_bind(home, name, "the.key")
            waiting(channel).declare()
            began = time.monotonic()
            publisher.publish([_to("the.key", exchange=waiting.exchange.name)])
            back = _await(lambda: channel.basic_get(home, no_ack=True))
            came = back is not None and back.body == b"proof" and back.delivery_info["routing_key"] == "the.key"
            return came, time.monotonic() - began
        finally:
            channel.queue_delete(waiting.name)
            channel.exchange_delete(waiting.exchange.name)


@contextmanager
def _exclusive(connection: Any, arguments: dict[str, Any]) -> Iterator[str]:
    """Make a classic queue that the broker itself deletes when this connection ends."""
    with connection.channel() as channel:
        queue = Queue(_name(), exclusive=True, durable=False, queue_arguments=arguments)(channel)
        queue.queue_declare()
        try:
            yield queue.name
        finally:
            queue.delete()


def _name() -> str:
    return f"{_PREFIX}{secrets.token_hex(6)}"


def _to(key: str, *, exchange: str = "") -> Outgoing:
    return Outgoing(exchange=exchange, routing_key=key, body=b"proof", content_encoding=None)


def _fails(publisher: Publisher, message: Outgoing) -> bool:
    try:
        publisher.publish([message])
    except PublishFailed:
        return True
    return False


def _await(look: Callable[[], Any]) -> Any:
    """Return what a look finds within the patience, or None."""
    deadline, pause = time.monotonic() + _PATIENCE, threading.Event()
    while (found := look()) is None and time.monotonic() < deadline:
        pause.wait(0.05)
    return found
