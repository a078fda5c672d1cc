"""Publishing with confirms: many messages at once, each persistent, mandatory and confirmed by the broker."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from amqp.exceptions import AccessRefused, NotFound
from kombu import Connection, Queue

from .connection import CONNECTION_ERRORS, connection_to
from .declaring import node_down
from .delivery import raw_body
from .errors import PublishFailed, QueueUnavailable, Unroutable

#: Messages published before their confirms are awaited.
_WINDOW = 500

#: Where a message goes, and its id.
Target = tuple[str, str, Any]

#: Returned messages that an error shows, and bytes of the body of each.
_MAX_SHOWN, _SHOWN_BODY = 3, 200

#: Seconds to read what the broker has sent already.
_GLANCE = 0.001

_BLOCKED = "the broker takes no messages, it is low on memory or disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One message to publish. The body is sent unchanged."""

    exchange: str
    routing_key: str
    body: bytes
    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    content_type: str | None = "application/json"
    content_encoding: str | None = "utf-8"
    #: Whether an unroutable message is an error. An event without subscribers is not an error.
    mandatory: bool = True


class Confirms:
    """The broker's answers to what one channel has published: confirms, nacks and returned messages."""

    def __init__(self) -> None:
        #: Tags without an answer, in order.
        self.unconfirmed: dict[int, None] = {}
        self.nacked: set[int] = set()
        #: Exchange, routing key and message id of a returned message -> its text for an error.
        self.returned: dict[Target, str] = {}
        self.last_tag = 0

    @property
    def all_arrived(self) -> bool:
        """Whether every message was confirmed, and none refused or returned."""
        return not (self.unconfirmed or self.nacked or self.returned)

    def expect(self) -> None:
        """Note that the next message is published: the broker counts them from 1."""
        self.last_tag += 1
        self.unconfirmed[self.last_tag] = None

    def receive_from(self, channel: Any) -> None:
        """Put a channel into confirm mode and receive what the broker sends by it."""

        def on_nack(tag: int, multiple: bool) -> None:
            self.nacked.update(self._confirm(tag, multiple))

        def on_return(_error: Exception, exchange: str, routing_key: str, message: Any) -> None:
            body = raw_body(message.body, message.properties.get("content_encoding"))[:_SHOWN_BODY]
            target = (exchange, routing_key, message.properties.get("message_id"))
            self.returned[target] = f"exchange {exchange!r} with key {routing_key!r}: {body!r}"

        channel.confirm_select()
        channel.events["basic_ack"].add(self._confirm)
        channel.events["basic_nack"].add(on_nack)
        channel.events["basic_return"].add(on_return)

    def _confirm(self, tag: int, multiple: bool) -> list[int]:
        """Note an answer of the broker; return the tags of the messages that it is for."""
        confirmed = list(takewhile(tag.__ge__, self.unconfirmed)) if multiple else [tag]
        for each in confirmed:
            self.unconfirmed.pop(each, None)
        return confirmed


@dataclass(slots=True)
class _HeldMessages:
    """Messages that were sent when the broker blocked the connection, and whether it has confirmed them since."""

    messages: Sequence[Outgoing]
    arrived: bool = False


class Publisher:
    """One connection and one channel in confirm mode, opened when first used. Safe for use by several threads.

    A blocked connection (`connection.blocked`) stays open, and nothing is sent meanwhile. The broker publishes what it
    has not read yet when its alarm ends, even from a closed connection: each further attempt would be a duplicate.

    A channel that received a nack is replaced. On RabbitMQ 3.10 a channel whose first publish fell into a leader
    election of a quorum queue receives a nack for every later one.
    """

    def __init__(self, url: str, *, timeout: float = 5.0) -> None:
        self._url = url
        self._timeout = timeout
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._channel: Any = None
        self._confirms = Confirms()
        self._blocked = False
        self._held: _HeldMessages | None = None
        self._declared: set[str] = set()
        self._refused: set[str] = set()

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Publish all and wait until the broker has confirmed each.

        Raises PublishFailed if a message is refused, unroutable, or not confirmed within the timeout; and at once while
        the broker blocks the connection. Any of them may have arrived then: a second attempt may duplicate messages,
        and loses none. A second attempt with the same objects sends none again that arrived after an alarm.
        """
        with self._lock:
            for first in range(0, len(messages), _WINDOW):
                try:
                    self._send(messages[first : first + _WINDOW])
                except PublishFailed as error:
                    if error.failed is not None:
                        unsent = range(first + _WINDOW, len(messages))
                        error.at((*(first + each for each in error.failed), *unsent))
                    raise

    def declare(self, queues: Iterable[Queue]) -> None:
        """Declare queues with their exchanges and bindings, each once per connection.

        A queue that the account may not declare must exist. Raises QueueUnavailable for a queue whose node is down.
        Raises PublishFailed if the broker does not declare one, and at once while it blocks the connection.
        """
        with self._lock:
            self._require_unblocked()
            try:
                for queue in queues:
                    if queue.name not in self._declared:
                        self._declare(queue)
                        self._declared.add(queue.name)
            except CONNECTION_ERRORS as error:
                self._drop()
                if node := node_down(error):
                    raise QueueUnavailable(f"queue {queue.name}: its node {node} is down") from error
                raise PublishFailed(f"queue not declared: {error!r}") from error

    def declare_if_missing(self, queue: Queue) -> bool:
        """Ask the broker for a queue, and declare it if it is missing; return whether it was. Raises PublishFailed."""
        with self._lock:
            self._require_unblocked()
            try:
                queue(self._open_channel()).queue_declare(passive=True)
            except CONNECTION_ERRORS as error:
                # The broker has closed the channel, too.
                self._drop()
                if not isinstance(error, NotFound):
                    raise PublishFailed(f"queue {queue.name} not found: {error!r}") from error
            else:
                return False
        self.declare([queue])
        return True

    def close(self) -> None:
        """Close the connection; a later publish opens a new one."""
        with self._lock:
            self._drop()

    def _declare(self, queue: Queue) -> None:
        if queue.name not in self._refused:
            try:
                queue(self._open_channel()).declare()
            except AccessRefused:
                # py-amqp opens the closed channel again, but not in confirm mode.
                self._drop()
                self._refused.add(queue.name)
            else:
                return
        # A check for existence needs no permission.
        self._open_channel().queue_declare(queue.name, passive=True)

    def _send(self, messages: Sequence[Outgoing]) -> None:
        self._require_unblocked()
        if self._arrived_late(messages):
            return
        was_open = self._channel is not None
        try:
            self._send_once(messages)
        except CONNECTION_ERRORS as error:
            blocked = self._blocked
            if blocked and isinstance(error, TimeoutError) and self._confirms.unconfirmed:
                self._held = _HeldMessages(messages)
            else:
                self._drop()
            if blocked or not was_open:
                why = _BLOCKED if blocked else repr(error)
                raise PublishFailed(f"{len(messages)} message(s) not confirmed: {why}") from error
            # An idle connection may have broken long ago: try once on a new one.
            self._send(messages)
        except BaseException:
            # After an encoding error or an interrupt, the channel's delivery tags no longer match ours.
            self._drop()
            raise

    def _send_once(self, messages: Sequence[Outgoing]) -> None:
        channel = self._open_channel()
        confirms, first = self._confirms, self._confirms.last_tag + 1
        targets: list[Target] = []
        for message in messages:
            wire = wire_message(channel, message)
            targets.append((message.exchange, message.routing_key, wire.properties["message_id"]))
            confirms.expect()
            channel.basic_publish(
                wire, exchange=message.exchange, routing_key=message.routing_key, mandatory=message.mandatory
            )
        self._await_confirms()
        returned, confirms.returned = confirms.returned, {}
        failed = {position for position, target in enumerate(targets) if target in returned}
        if len(failed) < len(returned):
            failed = set(range(len(messages)))
        if confirms.nacked:
            failed |= {tag - first for tag in (*confirms.nacked, *confirms.unconfirmed)}
            self._drop()
            raise PublishFailed(f"the broker refused {len(confirms.nacked)} of {len(messages)} message(s)").at(failed)
        if returned:
            # A declared queue may have been deleted since; the next attempt declares it again.
            self._declared.clear()
            shown = ", ".join(sorted(set(returned.values()))[:_MAX_SHOWN])
            raise Unroutable(f"{len(failed)} message(s) returned, no queue is bound for {shown}").at(failed)

    def _require_unblocked(self) -> None:
        """Raise PublishFailed while the broker blocks the connection, after reading what it has sent by now."""
        while self._blocked and self._connection:
            try:
                self._connection.drain_events(timeout=_GLANCE)
            except TimeoutError:
                raise PublishFailed(_BLOCKED) from None
            except CONNECTION_ERRORS:
                self._drop()

    def _arrived_late(self, messages: Sequence[Outgoing]) -> bool:
        """Return whether these messages were held back by an alarm, and have arrived since."""
        held = self._held
        if held is None:
            return False
        if self._confirms.unconfirmed:
            with suppress(*CONNECTION_ERRORS):
                self._await_confirms()
            held.arrived = self._confirms.all_arrived
            if not held.arrived:
                self._drop()
        again = {id(message) for message in messages}
        left = [message for message in held.messages if id(message) not in again]
        if len(left) + len(messages) != len(held.messages):
            return False
        self._held = _HeldMessages(left, held.arrived) if left else None
        return held.arrived

    def _await_confirms(self) -> None:
        """Wait until every message is confirmed, or one refused; raises TimeoutError and other CONNECTION_ERRORS."""
        deadline = time.monotonic() + self._timeout
        while self._confirms.unconfirmed and not self._confirms.nacked and self._connection:
            self._connection.drain_events(timeout=max(_GLANCE, deadline - time.monotonic()))

    def _open_channel(self) -> Any:
        if self._channel is None or not self._channel.is_open:
            self._drop()
            self._connection = connection_to(
                self._url,
                timeout=self._timeout,
                on_blocked=lambda _reason: self._set_blocked(True),
                on_unblocked=lambda: self._set_blocked(False),
            )
            self._connection.connect()
            self._channel = self._connection.channel()
            self._confirms.receive_from(self._channel)
        return self._channel

    def _drop(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        self._confirms, self._blocked = Confirms(), False
        self._declared.clear()
        if connection is not None:
            with suppress(*CONNECTION_ERRORS):
                connection.collect(socket_timeout=1)

    def _set_blocked(self, blocked: bool) -> None:
        """Note whether the broker stopped reading from this connection (`connection.blocked`)."""
        self._blocked = blocked


def wire_message(channel: Any, message: Outgoing) -> Any:
    """Return a channel's message: persistent and with a new message id, unless its properties say otherwise."""
    properties = {"delivery_mode": 2, **message.properties}
    if "message_id" not in properties:
        properties["message_id"] = str(uuid.uuid4())
    priority = properties.pop("priority", None)
    return channel.prepare_message(
        message.body,
        priority=priority,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        headers=dict(message.headers),
        properties=properties,
    )


_publishers: dict[tuple[int, str], Publisher] = {}


def get_publisher(url: str, *, timeout: float = 5.0) -> Publisher:
    """Return this process's publisher for a broker; a forked child gets its own, never its parent's socket."""
    key = (os.getpid(), url)
    if key not in _publishers:
        _publishers[key] = Publisher(url, timeout=timeout)
    return _publishers[key]
