"""Replies to requests: a handler for each type runs in a thread pool or in the caller's thread."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future as Running
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from pika import BasicProperties
from pika.channel import Channel

from ..delivery import Delivery
from ..errors import ApplicationError, BrokerUnreachable, Overloaded, Undecodable, UnknownType
from ..publishing import Outgoing
from .channel import ChannelOwner, ChannelThread, properties_of, publish

logger = logging.getLogger(__name__)

#: Answers a request of one type, given with its JSON object; None where there is nothing to say, or not yet.
Handler = Callable[[Delivery, dict[str, Any]], bytes | None]
#: The same, where it is known already what is to be done.
Work = Callable[[], bytes | None]
#: Told of a message that was passed on to a queue which is not there: the queue, and the message as it was sent.
Returned = Callable[[str, Delivery], None]

#: Seconds that an answer waits for a connection where its request does not say how long somebody waits for it.
_PATIENCE = 10.0


class Responder(ChannelOwner):
    """Gives each request to the handler of its `type`, and sends what it returns to whoever asked.

    `problem` makes the reply of what a handler raised, of a body that cannot be read (Undecodable), of a type without a
    handler (UnknownType), and of a request for which there is no room (Overloaded): none of these stops anything. A
    request without `reply_to` is worked on, and not answered. With `threads` = 0 handlers run in the thread that calls
    `take`; otherwise `backlog` requests wait for a thread at most. Replies are neither kept on disk nor confirmed.
    """

    def __init__(
        self,
        url: str,
        handlers: Mapping[str, Handler],
        *,
        problem: Callable[[Exception], bytes],
        threads: int = 0,
        backlog: int = 256,
        timeout: float = 5.0,
        returned: Returned | None = None,
    ) -> None:
        self._handlers = handlers
        self._problem = problem
        self._tell_returned = returned
        self._thread = ChannelThread(url, self, timeout=timeout, heartbeat=10.0, name="responder")
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="answers") if threads else None
        self._room = backlog
        self._lock = threading.Lock()
        self._waiting = 0
        self._running: set[Running[None]] = set()
        #: Whether it refuses what comes.
        self.closing = False

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a thread."""
        return self._waiting

    @property
    def connected(self) -> bool:
        """Whether there is a connection; the first reply makes one."""
        return self._thread.connected

    def take(self, delivery: Delivery) -> None:
        """Answer a request, now or later; never raises, and waits for nothing but a handler where `threads` is 0."""
        self.answer(delivery, partial(self._handle, delivery))

    def answer(self, delivery: Delivery, work: Work) -> None:
        """Reply with what `work` returns or raises, as `take` does with a handler."""
        if self._pool is None:
            self._reply_with(delivery, work)
        elif self._has_room():
            running = self._pool.submit(self._work, delivery, work, _deadline(delivery.properties))
            self._running.add(running)
            running.add_done_callback(self._running.discard)
        else:
            self._refuse(delivery, Overloaded(f"{self._waiting} requests are waiting already"))

    def reply(self, delivery: Delivery, body: bytes) -> None:
        """Send a reply from any thread, without waiting; nobody is answered who did not ask for it by `reply_to`."""
        reply_to, correlation_id = (delivery.properties.get(name) for name in ("reply_to", "correlation_id"))
        if reply_to:
            properties = {"delivery_mode": 1} | ({"correlation_id": correlation_id} if correlation_id else {})
            self._submit(
                Outgoing(exchange="", routing_key=reply_to, body=body, properties=properties, mandatory=False),
                _deadline(delivery.properties),
            )

    def forward(self, delivery: Delivery, queue: str) -> None:
        """Pass a request on unread, from any thread, without waiting: whoever takes it answers who asked.

        Where there is no such queue `returned` is called, in another thread, with the queue's name and the message.
        """
        properties: dict[str, Any] = delivery.kept_properties() | {"delivery_mode": 1}
        if expiration := delivery.properties.get("expiration"):
            properties["expiration"] = expiration
        message = Outgoing(
            exchange="",
            routing_key=queue,
            body=delivery.body,
            headers=delivery.own_headers(),
            properties=properties,
            content_type=delivery.content_type,
            content_encoding=delivery.content_encoding,
        )
        self.send(message)

    def send(self, message: Outgoing) -> None:
        """Send a message of one's own, as `forward` does; until it expires, where it does."""
        self._submit(message, _deadline(message.properties))

    def close(self, grace: float = 5.0) -> None:
        """Refuse what comes, finish what is under way and waiting within `grace` seconds, and close the connection."""
        self.closing = True
        if self._pool is not None:
            wait(set(self._running), timeout=grace)
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._thread.close()

    def opened(self, channel: Channel, ready: Callable[[], None]) -> None:
        """Receive returned messages."""
        channel.add_on_return_callback(self._on_returned)
        ready()

    def _on_returned(self, _channel: Channel, method: Any, properties: BasicProperties, body: bytes) -> None:
        queue = method.routing_key
        values, headers = properties_of(properties)
        delivery = Delivery(
            body=body,
            headers=headers,
            properties=values,
            content_type=properties.content_type,
            content_encoding=properties.content_encoding,
            queue=queue,
            routing_key=queue,
        )
        try:
            if self._tell_returned is not None:
                self._tell_returned(queue, delivery)
        except Exception:
            logger.exception("Message that was returned from %s is lost: its handler failed", queue)

    def _has_room(self) -> bool:
        with self._lock:
            if self.closing or self._waiting >= self._room:
                return False
            self._waiting += 1
            return True

    def _work(self, delivery: Delivery, work: Work, until: float) -> None:
        with self._lock:
            self._waiting -= 1
        if time.monotonic() < until:
            self._reply_with(delivery, work)

    def _handle(self, delivery: Delivery) -> bytes | None:
        payload = _payload(delivery)
        return self._handler(payload)(delivery, payload)

    def _reply_with(self, delivery: Delivery, work: Work) -> None:
        try:
            body = work()
        except Exception as error:  # noqa: BLE001 - Whatever it was, who asked is told, and the next one is answered.
            self._refuse(delivery, error)
            return
        if body is not None:
            self.reply(delivery, body)

    def _handler(self, payload: Mapping[str, Any]) -> Handler:
        kind = payload.get("type")
        handler = self._handlers.get(kind) if isinstance(kind, str) else None
        if handler is None:
            raise UnknownType(f"type {kind!r:.100}: expected one of {', '.join(self._handlers)}")
        return handler

    def _refuse(self, delivery: Delivery, error: Exception) -> None:
        level = _level(error)
        logger.log(
            level,
            "Request of %s failed: %s: %s",
            delivery.queue,
            type(error).__name__,
            error,
            exc_info=error if level == logging.ERROR else None,
        )
        try:
            self.reply(delivery, self._problem(error))
        except Exception:
            logger.exception("No reply sent for the error %r", error)

    def _submit(self, message: Outgoing, until: float) -> None:
        try:
            self._thread.run(partial(self._thread.write, partial(_publish, message), until=until))
        except BrokerUnreachable as error:
            logger.warning("Nothing sent to %s: %s", message.routing_key, error)


def _publish(message: Outgoing, channel: Channel) -> None:
    try:
        publish(channel, message)
    except Exception as error:  # noqa: BLE001 - An address that no client could have given must stop nobody.
        logger.warning("Message to %r cannot be encoded: %r", message.routing_key, error)


def _level(error: Exception) -> int:
    """Return how loudly an error is told here: what the requester did, or is to do about it, the reply says."""
    if isinstance(error, Undecodable | UnknownType):
        return logging.WARNING
    return logging.DEBUG if isinstance(error, ApplicationError) else logging.ERROR


def _payload(delivery: Delivery) -> dict[str, Any]:
    """Return the JSON object of a body; raises Undecodable."""
    try:
        payload = json.loads(delivery.body)
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"not JSON: {error}: {delivery.body[:60]!r}") from error
    if not isinstance(payload, dict):
        raise Undecodable(f"expected a JSON object, got {type(payload).__name__}: {delivery.body[:60]!r}")
    return payload


def _deadline(properties: Mapping[str, Any]) -> float:
    """Return until when somebody waits for the answer, by the monotonic clock: what is said of it began just now."""
    try:
        seconds = int(properties.get("expiration") or "") / 1_000
    except ValueError:
        seconds = _PATIENCE
    return time.monotonic() + seconds
