"""Probes: try on queues of their own what lossless delivery depends on. They delete these queues again."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu import Exchange, Queue

from app.broker.errors import PublishFailed
from app.broker.outgoing import Outgoing
from app.broker.policies.delays import QueueType, delay_queue
from app.broker.publishing import Publisher

#: Every queue and exchange of a probe has a name that begins with it.
_PREFIX = "perennial.doctor."

#: Milliseconds that the probed message waits in the delay queue.
_TTL_MS = 200
#: Seconds within which it must come back.
_TIMEOUT = 20.0

#: Milliseconds after which the broker deletes the delay queue of a doctor that was killed.
_EXPIRES_MS = 60_000

_BODY = b"probe"


def publish_confirmed(connection: Any, publisher: Publisher) -> None:
    """Publish to a queue. Raises PublishFailed if the broker does not confirm the message."""
    with _exclusive_queue(connection, {}) as name:
        publisher.publish([_message(name)])


def reports_unroutable(publisher: Publisher) -> bool:
    """Return whether publishing an unroutable message is an error: the broker confirms such a message."""
    return _is_refused(publisher, _message(_name()))


def reports_full_queue(connection: Any, publisher: Publisher) -> bool:
    """Return whether publishing to a full `reject-publish` queue is an error."""
    with _exclusive_queue(connection, {"x-max-length": 1, "x-overflow": "reject-publish"}) as name:
        publisher.publish([_message(name)])
        return _is_refused(publisher, _message(name))


def delayed_return(connection: Any, publisher: Publisher, queue_type: QueueType) -> tuple[bool, float]:
    """Publish to a delay queue; return whether the message came back with its routing key, and after how many seconds.

    The queue is declared like every delay queue, but also expires, in case the doctor is killed before deleting it.
    """
    name = _name()
    waiting = delay_queue(name, _TTL_MS, back_to=name, queue_type=queue_type)
    waiting.queue_arguments["x-expires"] = _EXPIRES_MS
    with connection.channel() as channel, _exclusive_queue(connection, {}) as work_queue:
        try:
            Exchange(name, type="direct", durable=False, auto_delete=True)(channel).declare()
            channel.queue_bind(work_queue, name, "the.key")
            waiting(channel).declare()
            start = time.monotonic()
            publisher.publish([_message("the.key", exchange=waiting.exchange.name)])
            while (back := channel.basic_get(work_queue, no_ack=True)) is None and time.monotonic() < start + _TIMEOUT:
                time.sleep(0.05)
            returned = back is not None and back.body == _BODY and back.delivery_info["routing_key"] == "the.key"
            return returned, time.monotonic() - start
        finally:
            channel.queue_delete(waiting.name)
            channel.exchange_delete(waiting.exchange.name)


@contextmanager
def _exclusive_queue(connection: Any, arguments: dict[str, Any]) -> Iterator[str]:
    """Yield the name of a classic queue, which the broker deletes at the latest with the connection."""
    with connection.channel() as channel:
        queue = Queue(_name(), exclusive=True, durable=False, queue_arguments=arguments)(channel)
        queue.queue_declare()
        try:
            yield queue.name
        finally:
            queue.delete()


def _name() -> str:
    return f"{_PREFIX}{secrets.token_hex(6)}"


def _message(key: str, *, exchange: str = "") -> Outgoing:
    return Outgoing(exchange=exchange, routing_key=key, body=_BODY, content_encoding=None)


def _is_refused(publisher: Publisher, message: Outgoing) -> bool:
    try:
        publisher.publish([message])
    except PublishFailed:
        return True
    return False
