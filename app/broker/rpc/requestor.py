"""Requests that expect a reply: many in flight on one connection, each with its own deadline."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kombu import Exchange
from pika import BasicProperties
from pika.channel import Channel

from ..errors import ApplicationError, BrokerUnreachable, PublishFailed, RequestTimedOut, Unroutable
from ..outgoing import Outgoing
from .channel import ChannelOwner, ChannelThread, properties_of, publish

#: The largest expiration in milliseconds that AMQP can carry.
_MAX_EXPIRATION = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a request: its body, properties and headers."""

    body: bytes
    properties: Mapping[str, Any]
    headers: Mapping[str, Any]


@dataclass(slots=True)
class _Call:
    """A request without a reply yet. `until` is its deadline by the monotonic clock."""

    id: str
    message: Outgoing
    future: Future[Reply]
    until: float
    timer: object = None
    sent: bool = False

    def address(self) -> str:
        return f"exchange {self.message.exchange!r} with key {self.message.routing_key!r}"


class Requestor(ChannelOwner):
    """Sends requests and hands each its reply. Safe between threads; connects when needed.

    Replies arrive in an exclusive queue that the broker named and deletes with the connection (the "dynamic queue" of
    the AMQP clients document). `exchanges` are declared on each new connection: the broker closes the channel for a
    request to an exchange that does not exist. Requests that are not sent yet wait for a connection until their
    deadlines; without `reconnects` they fail with the first attempt to open one.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 5.0,
        heartbeat: float = 10.0,
        exchanges: Iterable[Exchange] = (),
        reconnects: bool = True,
    ) -> None:
        self._exchanges = tuple(exchanges)
        self._reconnects = reconnects
        self._thread = ChannelThread(url, self, timeout=timeout, heartbeat=heartbeat, name="requestor")
        self._prefix = uuid.uuid4().hex[:12]
        self._numbers = itertools.count()
        #: Requests in flight.
        self._calls: dict[str, _Call] = {}
        self._reply_to = ""

    def send(self, message: Outgoing, *, deadline: float) -> Future[Reply]:
        """Send a request, and return at once; `deadline` is in seconds from now.

        The future raises:
            RequestTimedOut: no reply arrived by the deadline.
            Unroutable: the broker returned the request, since no queue is bound for it.
            BrokerUnreachable: the connection broke, or none could be opened by the deadline.
            PublishFailed: the broker accepts no messages, or the request cannot be encoded.

        A request whose future failed may still be processed.
        """
        until = time.monotonic() + deadline
        call = _Call(f"{self._prefix}.{next(self._numbers)}", message, Future(), until)
        self._calls[call.id] = call

        def on_deadline() -> None:
            call.timer = None
            if call.id in self._calls:
                trouble = None if call.sent else self._thread.trouble
                self._finish(call.id, trouble or RequestTimedOut(f"{call.address()}: no reply within {deadline:g} s"))

        def start() -> None:
            call.timer = self._thread.call_later(call.until - time.monotonic(), on_deadline)
            self._thread.write(partial(self._publish, call), until=call.until)

        try:
            self._thread.run(start)
        except BrokerUnreachable as error:
            self._finish(call.id, error)
        return call.future

    def request(self, message: Outgoing, *, deadline: float) -> Reply:
        """Send a request and wait for its reply; raises what the future of `send` raises."""
        return self.send(message, deadline=deadline).result()

    def close(self) -> None:
        """Close the connection; requests in flight and later ones fail with BrokerUnreachable."""
        self._thread.close()
        for call in list(self._calls.values()):  # Another thread may send meanwhile.
            call.timer = None
        self._fail(BrokerUnreachable("the requestor was closed"), also_unsent=True)

    # All below runs in the channel's thread, after `close` also in the caller's.

    def opened(self, channel: Channel, ready: Callable[[], None]) -> None:
        """Declare the exchanges and the reply queue, and consume from it."""

        def consume(declared: Any) -> None:
            self._reply_to = declared.method.queue
            channel.basic_consume(self._reply_to, on_reply, auto_ack=True, callback=lambda _: ready())

        def on_reply(_channel: Channel, _method: Any, properties: BasicProperties, body: bytes) -> None:
            values, headers = properties_of(properties)
            self._finish(values.get("correlation_id"), Reply(body, values, headers))

        def on_returned(_channel: Channel, method: Any, properties: BasicProperties, _body: bytes) -> None:
            reason = f"no queue is bound for exchange {method.exchange!r} with key {method.routing_key!r}"
            self._finish(properties.correlation_id, Unroutable(reason))

        def on_cancelled(_cancelled: Any) -> None:
            # The reply queue was deleted: requests that wait for it fail, and a new connection has another.
            if channel.is_open:
                channel.close(reply_text="the broker cancelled the consumer of replies")

        channel.add_on_return_callback(on_returned)
        channel.add_on_cancel_callback(on_cancelled)
        for each in self._exchanges:
            # The broker works in order: the answer to the last declaration is the one to wait for.
            channel.exchange_declare(
                each.name, each.type, durable=each.durable, auto_delete=each.auto_delete, arguments=each.arguments
            )
        channel.queue_declare("", exclusive=True, auto_delete=True, callback=consume)

    def lost(self, error: BrokerUnreachable) -> None:
        """Fail the requests that were written: their replies go to a queue that no longer exists."""
        self._fail(error, also_unsent=not self._reconnects)

    def _publish(self, call: _Call, channel: Channel) -> None:
        left = int(1_000 * (call.until - time.monotonic()))
        if call.id not in self._calls or left < 1:
            return
        properties = {
            **call.message.properties,
            "delivery_mode": 1,
            "reply_to": self._reply_to,
            "correlation_id": call.id,
            "message_id": call.id,
            "expiration": str(min(left, _MAX_EXPIRATION)),
        }
        call.sent = True
        try:
            publish(channel, replace(call.message, properties=properties, mandatory=True))
        except Exception as error:  # noqa: BLE001 - A request that cannot be encoded must not fail the others.
            self._finish(call.id, PublishFailed(f"{call.address()}: it cannot be sent: {error!r}"))

    def _fail(self, error: BrokerUnreachable, *, also_unsent: bool) -> None:
        for call in list(self._calls.values()):
            if call.sent or also_unsent:
                self._finish(call.id, error)

    def _finish(self, call_id: Any, outcome: Reply | ApplicationError) -> None:
        call = self._calls.pop(call_id, None)
        if call is None:  # A late or a second reply.
            return
        if call.timer is not None:
            self._thread.cancel(call.timer)
        if call.future.set_running_or_notify_cancel():
            if isinstance(outcome, Reply):
                call.future.set_result(outcome)
            else:
                call.future.set_exception(outcome)
