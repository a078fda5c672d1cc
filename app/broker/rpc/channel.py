"""One pika channel in a thread of its own: any thread hands it work, and none waits for the broker."""

from __future__ import annotations

import logging
import math
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pika
from kombu.utils.url import parse_url
from pika.adapters.select_connection import IOLoop
from pika.channel import Channel

from ..connection import backoff, broker_name, connection_error_text
from ..errors import ApplicationError, BrokerUnreachable, PublishFailed
from ..outgoing import Outgoing
from ..publishing import BLOCKED

logger = logging.getLogger(__name__)

#: Writes to the channel, in the channel's thread.
Write = Callable[[Channel], None]

_State = Literal["idle", "connecting", "open", "waiting", "closed"]

#: Seconds before the next attempt to connect: after the first failure, and at most.
_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.05, 1.0
#: Seconds in which a connection is closed in order.
_CLOSE_TIMEOUT = 1.0


class ChannelOwner:
    """Receives the events of a channel, in the channel's thread, where no call may block."""

    def opened(self, channel: Channel, ready: Callable[[], None]) -> None:
        """Prepare a new channel and call `ready`; nothing is written before."""
        del channel
        ready()

    def lost(self, error: BrokerUnreachable) -> None:
        """Note that a connection broke: whether its last messages arrived is unknown."""


class ChannelThread:
    """Runs pika's I/O loop in a thread, with one connection that is opened when there is something to write.

    `run` and `close` may be called from any thread, all other methods in the channel's thread only. Must not be shared
    with a forked child.
    """

    def __init__(self, url: str, owner: ChannelOwner, *, timeout: float, heartbeat: float, name: str) -> None:
        """Prepare a connection; `timeout` bounds connecting, `heartbeat` is AMQP's, both in seconds."""
        self._broker = broker_name(url)
        self._hosts = [_parameters(each, timeout=timeout, heartbeat=heartbeat) for each in url.split(";")]
        self._owner = owner
        self._lock = threading.Lock()
        # Opened by the first use: its sockets must not be inherited by a child that is forked before.
        self._loop: Any = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._outbox: deque[tuple[float, Write]] = deque()
        self._state: _State = "idle"
        self._channel: Channel | None = None
        self._failures = 0
        #: Why nothing is written at the moment, where that is known: BrokerUnreachable or PublishFailed.
        self.trouble: ApplicationError | None = None

    def run(self, function: Callable[[], None]) -> None:
        """Call a function in the channel's thread, soon; raises BrokerUnreachable after `close`."""
        with self._lock:
            if self._state == "closed":
                raise self._unreachable("this connection was closed")
            if not self._thread.ident:
                # pika logs each failed attempt with a traceback; this class reports a failure once, in its errors.
                logging.getLogger("pika").setLevel(logging.CRITICAL)
                self._loop = IOLoop()
                self._thread.start()
            self._loop.add_callback_threadsafe(function)

    def close(self) -> None:
        """Write what can be written, close the connection and end the thread; takes two seconds at most."""
        with self._lock:
            before: str = self._state
            self._state = "closed"
            if before == "closed" or not self._thread.ident:
                return
            self._loop.add_callback_threadsafe(self._close)
        self._thread.join(2 * _CLOSE_TIMEOUT)

    def call_later(self, seconds: float, function: Callable[[], None]) -> object:
        """Call a function in `seconds`; return a handle for `cancel`."""
        return self._loop.call_later(max(0.0, seconds), function)

    def cancel(self, handle: Any) -> None:
        """Cancel what `call_later` returned a handle for, before it is called."""
        self._loop.remove_timeout(handle)

    def write(self, write: Write, *, until: float) -> None:
        """Have `write` called with the channel; forgotten when no channel is open by `until` (monotonic seconds)."""

        def forget_late() -> None:
            # A broker may be away, or low on memory, for hours.
            now = time.monotonic()
            while self._outbox and self._outbox[0][0] <= now:
                self._outbox.popleft()

        self._outbox.append((until, write))
        self._flush()
        if self._outbox:
            self.call_later(until - time.monotonic(), forget_late)

    def _run(self) -> None:
        loop: IOLoop = self._loop
        while self._state != "closed" or self._channel is not None:
            try:
                loop.start()
                break
            except Exception:
                # A callback failed. pika itself ends a connection that it cannot read.
                logger.exception("%s: unexpected error in a callback", self._thread.name)
        loop.close()
        # A broker that did not answer the close in time: pika has no other way to close the socket than to collect it.
        self._loop = self._channel = None

    def _flush(self) -> None:
        """Write what is waiting, or open a connection for it."""
        if self._channel is not None and self.trouble is None:
            while self._outbox:
                until, write = self._outbox.popleft()
                if time.monotonic() < until:
                    write(self._channel)
        elif self._state == "idle" and self._outbox:
            self._state = "connecting"
            pika.SelectConnection.create_connection(self._hosts, self._on_connected, self._loop)

    def _on_connected(self, outcome: Any) -> None:
        if isinstance(outcome, BaseException):
            self._lose(outcome)
            return
        is_lost = False

        def lose(error: BaseException) -> None:
            # Once: a connection may take so long to close that the next one is open by then.
            nonlocal is_lost
            if not is_lost:
                is_lost = True
                self._lose(error)

        outcome.add_on_close_callback(lambda _connection, error: lose(error))
        outcome.add_on_connection_blocked_callback(lambda *_: self._set_blocked(True))
        outcome.add_on_connection_unblocked_callback(lambda *_: self._set_blocked(False))

        def on_open(channel: Channel) -> None:
            channel.add_on_close_callback(on_channel_closed)
            self._owner.opened(channel, partial(on_ready, channel))

        def on_channel_closed(channel: Channel, error: Exception) -> None:
            # The broker closes a channel alone, for example for an exchange that does not exist: connect again.
            if channel.connection.is_open:
                lose(error)
                channel.connection.close()

        def on_ready(channel: Channel) -> None:
            self._channel, self.trouble, self._failures = channel, None, 0
            if self._state == "closed":
                self._close()
                return
            self._state = "open"
            self._flush()

        outcome.channel(on_open_callback=on_open)

    def _set_blocked(self, blocked: bool) -> None:
        self.trouble = PublishFailed(BLOCKED) if blocked else None
        self._flush()

    def _lose(self, error: BaseException) -> None:
        """Forget the broken connection and report it to the owner; after the backoff, connect again to write."""

        def retry() -> None:
            if self._state == "waiting":
                self._state = "idle"
                self._flush()

        if self._state == "closed":
            self._channel = None
            self._loop.stop()
        elif self._state in ("connecting", "open"):
            self._channel = None
            self._state = "waiting"
            self.trouble = lost = self._unreachable(_text(error))
            self._failures += 1
            self.call_later(backoff(self._failures, first=_FIRST_BACKOFF, longest=_LONGEST_BACKOFF), retry)
            self._owner.lost(lost)

    def _close(self) -> None:
        self._flush()
        if self._channel is None or not self._channel.connection.is_open:
            self._loop.stop()
            return
        self.call_later(_CLOSE_TIMEOUT, self._loop.stop)
        self._channel.connection.close()

    def _unreachable(self, reason: str) -> BrokerUnreachable:
        return BrokerUnreachable(f"broker {self._broker}: {reason}")


def publish(channel: Channel, message: Outgoing) -> None:
    """Write a message; raises an exception of any kind for one that cannot be encoded."""
    properties = pika.BasicProperties(
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        headers=dict(message.headers),
        **message.properties,
    )
    channel.basic_publish(message.exchange, message.routing_key, message.body, properties, message.mandatory)


def properties_of(properties: pika.BasicProperties) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the properties of a message that are set, and its headers."""
    values = {name: value for name, value in vars(properties).items() if value is not None}
    return values, values.pop("headers", {})


def _parameters(url: str, *, timeout: float, heartbeat: float) -> pika.ConnectionParameters:
    """Return pika's parameters for a URL as kombu reads it; TLS with the host's own certificate only (RFC 9525)."""
    parts = parse_url(url)
    host = parts["hostname"] or "localhost"
    encrypted = parts["transport"] == "amqps"
    return pika.ConnectionParameters(
        host=host,
        port=parts["port"] or (5671 if encrypted else 5672),
        virtual_host=parts["virtual_host"] or "/",
        credentials=pika.PlainCredentials(parts["userid"] or "guest", parts["password"] or "guest"),
        heartbeat=math.ceil(heartbeat),
        socket_timeout=timeout,
        stack_timeout=timeout,
        blocked_connection_timeout=None,
        ssl_options=pika.SSLOptions(ssl.create_default_context(), host) if encrypted else None,
    )


def _text(error: BaseException) -> str:
    """Return the text of the innermost error inside a pika error."""
    causes = getattr(error, "exceptions", None)
    inner = causes[-1] if causes else getattr(error, "exception", None)
    if isinstance(inner, BaseException):
        return _text(inner)
    return connection_error_text(error)
