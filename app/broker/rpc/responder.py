"""Replies to requests: a handler for each type runs in a thread pool or in the caller's thread."""

from __future__ import annotations

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

from ..delivery import Delivery, own_headers
from ..errors import ApplicationError, BrokerUnreachable, Overloaded, Undecodable, UnknownType, error_with_class
from ..nesting import read_json
from ..outgoing import Outgoing
from .channel import ChannelOwner, ChannelThread, properties_of, publish

logger = logging.getLogger(__name__)

#: Returns the reply to a request, given with its JSON object; None for no reply, or for a later one.
RequestHandler = Callable[[Delivery, dict[str, Any]], bytes | None]
#: Returns the reply to a request that is decoded already.
Work = Callable[[], bytes | None]
#: Called with the queue and the message when a message was forwarded to a queue that does not exist.
OnReturned = Callable[[str, Delivery], None]

#: Seconds that a reply waits for a connection if its request has no expiration.
_PATIENCE = 10.0


class Responder(ChannelOwner):
    """Calls the handler of each request's `type`, and sends its result to the requester.

    `problem` converts an exception of a handler to a reply. It also gets Undecodable for an invalid body, UnknownType
    for a type without a handler, and Overloaded if the backlog is full. A request without `reply_to` is handled, but
    gets no reply. With `threads` = 0 handlers run in the thread that calls `take`. Otherwise at most `backlog` requests
    wait for a thread. Replies are transient and not confirmed.
    """

    def __init__(
        self,
        url: str,
        handlers: Mapping[str, RequestHandler],
        *,
        problem: Callable[[Exception], bytes],
        threads: int = 0,
        backlog: int = 256,
        returned: OnReturned | None = None,
    ) -> None:
        self._handlers = handlers
        self._problem = problem
        self._on_returned = returned
        self._thread = ChannelThread(url, self, timeout=5.0, heartbeat=10.0, name="responder")
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="answers") if threads else None
        self._room = backlog
        self._lock = threading.Lock()
        #: Requests that wait for a thread.
        self._waiting = 0
        self._running: set[Running[None]] = set()
        #: Whether it refuses new requests.
        self.closing = False

    def take(self, delivery: Delivery) -> None:
        """Reply to a request with its handler's result. Never raises; with `threads` = 0 it waits for the handler."""

        def handle() -> bytes | None:
            try:
                payload = read_json(delivery.body)
            except ValueError as error:
                raise Undecodable(f"not JSON: {error}: {delivery.body[:60]!r}") from error
            if not isinstance(payload, dict):
                raise Undecodable(f"expected a JSON object, got {type(payload).__name__}: {delivery.body[:60]!r}")
            kind = payload.get("type")
            handler = self._handlers.get(kind) if isinstance(kind, str) else None
            if handler is None:
                raise UnknownType(f"type {kind!r:.100}: expected one of {', '.join(self._handlers)}")
            return handler(delivery, payload)

        self.answer(delivery, handle)

    def answer(self, delivery: Delivery, work: Work) -> None:
        """Reply with the result of `work`, or with the problem that it raises."""
        if self._pool is None:
            self._reply_with(delivery, work)
            return
        until = _deadline(delivery.properties)

        def run() -> None:
            with self._lock:
                self._waiting -= 1
            if time.monotonic() < until:
                self._reply_with(delivery, work)

        with self._lock:
            has_room = not self.closing and self._waiting < self._room
            self._waiting += has_room
        if has_room:
            running = self._pool.submit(run)
            self._running.add(running)
            running.add_done_callback(self._running.discard)
        else:
            self._refuse(delivery, Overloaded(f"{self._waiting} requests are waiting already"))

    def reply(self, delivery: Delivery, body: bytes) -> None:
        """Send a reply from any thread, without waiting; a request without `reply_to` gets none."""
        reply_to, correlation_id = (delivery.properties.get(name) for name in ("reply_to", "correlation_id"))
        if reply_to:
            properties = {"delivery_mode": 1} | ({"correlation_id": correlation_id} if correlation_id else {})
            self._submit(
                Outgoing(exchange="", routing_key=reply_to, body=body, properties=properties, mandatory=False),
                _deadline(delivery.properties),
            )

    def forward(self, delivery: Delivery, queue: str) -> None:
        """Forward a request to a queue, from any thread, without waiting. Its consumer replies to the requester.

        If the queue does not exist, `returned` is called in another thread with the queue's name and the message.
        """
        properties: dict[str, Any] = delivery.kept_properties() | {"delivery_mode": 1}
        if expiration := delivery.properties.get("expiration"):
            properties["expiration"] = expiration
        headers = own_headers(delivery.headers)
        self.send(Outgoing.copy_of(delivery, exchange="", routing_key=queue, headers=headers, properties=properties))

    def send(self, message: Outgoing) -> None:
        """Send any message as `forward` does. It waits for a connection until it expires."""
        self._submit(message, _deadline(message.properties))

    def close(self, grace: float = 5.0) -> None:
        """Refuse new requests, finish accepted ones within `grace` seconds, and close the connection."""
        self.closing = True
        if self._pool is not None:
            wait(set(self._running), timeout=grace)
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._thread.close()

    def opened(self, channel: Channel, ready: Callable[[], None]) -> None:
        """Receive returned messages."""

        def on_returned(_channel: Channel, method: Any, properties: BasicProperties, body: bytes) -> None:
            if self._on_returned is None:
                return
            queue = method.routing_key
            values, headers = properties_of(properties)
            content = properties.content_type, properties.content_encoding
            try:
                self._on_returned(queue, Delivery(body, headers, values, *content, queue=queue, routing_key=queue))
            except Exception:
                logger.exception("Message that was returned from %s is lost: its handler failed", queue)

        channel.add_on_return_callback(on_returned)
        ready()

    def _reply_with(self, delivery: Delivery, work: Work) -> None:
        try:
            body = work()
        except Exception as error:  # noqa: BLE001 - The requester gets a problem reply, and the next request is handled.
            self._refuse(delivery, error)
            return
        if body is not None:
            self.reply(delivery, body)

    def _refuse(self, delivery: Delivery, error: Exception) -> None:
        # The reply names the requester's own mistakes; only unexpected errors need the operator.
        level = logging.DEBUG if isinstance(error, ApplicationError) else logging.ERROR
        if isinstance(error, Undecodable | UnknownType):
            level = logging.WARNING
        logger.log(
            level,
            "Request of %s failed: %s",
            delivery.queue,
            error_with_class(error),
            exc_info=error if level == logging.ERROR else None,
        )
        try:
            self.reply(delivery, self._problem(error))
        except Exception:
            logger.exception("No reply sent for the error %r", error)

    def _submit(self, message: Outgoing, until: float) -> None:
        def write(channel: Channel) -> None:
            try:
                publish(channel, message)
            except Exception as error:  # noqa: BLE001 - An invalid address must not stop other replies.
                logger.warning("Message to %r cannot be encoded: %r", message.routing_key, error)

        try:
            self._thread.run(partial(self._thread.write, write, until=until))
        except BrokerUnreachable as error:
            logger.warning("Message to %s not sent, the connection is closed: %s", message.routing_key, error)


def _deadline(properties: Mapping[str, Any]) -> float:
    """Return when the requester stops waiting, by the monotonic clock: `expiration` milliseconds from now."""
    try:
        seconds = int(properties.get("expiration") or "") / 1_000
    except ValueError:
        seconds = _PATIENCE
    return time.monotonic() + seconds
