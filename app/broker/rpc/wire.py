"""One connection in a thread of its own: any thread gives it what is to be written, and nobody waits for the broker."""

from __future__ import annotations

import logging
import math
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from amqp import spec

from ..connection import CONNECTION_ERRORS, connection_error_text, connection_to
from ..errors import ApplicationError, BrokerUnreachable, PublishFailed
from ..publishing import Outgoing, wire_message
from .link import Link

logger = logging.getLogger(__name__)

#: What is to be done with the channel.
Write = Callable[[Any], None]

#: Writes, or frames read, before the other direction has its turn.
_BATCH = 256
#: Seconds before a broker that could not be reached is tried again: the first time, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


class Listener:
    """What a wire tells its owner: in the wire's thread but for `opened`, and to be dealt with quickly."""

    def opened(self, channel: Any) -> None:
        """Prepare a new connection's channel, before anything is written; called by the thread that connects."""

    def lost(self, error: BrokerUnreachable) -> None:
        """Called when a connection broke: nobody knows what became of that which was written."""

    def due(self) -> float | None:
        """Do what is due; return the seconds until something will be, or None."""
        return None


@dataclass(frozen=True, slots=True)
class _Broken:
    """What a thread found that wrote by itself."""

    link: Link
    error: Exception


class Wire:
    """Connects when there is something to write, writes it, and reads what comes.

    All is read in one thread, for py-amqp is not safe between threads; connecting is left to another, since it may take
    seconds in which deadlines pass. Writing is one call under a lock: the thread that has something to say does so
    itself where it would not have to wait, for waking another one takes longer, and leaves it to the reading thread
    otherwise, and always over TLS. A wire must not be shared with a forked child.
    """

    def __init__(
        self, url: str, listener: Listener, *, timeout: float = 5.0, heartbeat: float = 10.0, name: str = "wire"
    ) -> None:
        self._listener = listener
        self._heartbeat = heartbeat
        self._name = name
        self._where = connection_to(
            url,
            timeout=timeout,
            heartbeat=heartbeat,
            on_blocked=self._on_blocked,
            on_unblocked=self._on_unblocked,
        )
        self._timeout = timeout
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._outbox: deque[tuple[float, Write]] = deque()
        self._news: deque[Link | _Broken | Exception] = deque()
        self._writing = threading.Lock()
        self._sleeps_until = math.inf
        self._bell: socket.socket | None = None
        self._rung = False
        self._closed = False
        self._link: Link | None = None
        self._connecting = False
        self._blocked = False
        self._unreachable: BrokerUnreachable | None = None
        self._pause, self._retry_at, self._beat_at = _FIRST_PAUSE, 0.0, 0.0

    @property
    def trouble(self) -> ApplicationError | None:
        """Why nothing is written at the moment: BrokerUnreachable or PublishFailed, or None where nothing is known."""
        if self._blocked:
            return PublishFailed("the broker takes no messages, it is low on memory or disk")
        return self._unreachable

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as this side knows."""
        return self._link is not None

    def submit(self, write: Write, *, until: float) -> None:
        """Have `write` called with the channel; forgotten when there is no connection until then (monotonic seconds).

        Returns at once. Raises BrokerUnreachable when the wire is closed.
        """
        if self._write_now(write):
            return
        self._outbox.append((until, write))
        # Looked at afterwards: who closes it looks at the outbox after saying so.
        if self._closed:
            raise self._told(BrokerUnreachable("this connection was closed"))
        if self._thread is None:
            self._start()
        self._ring()

    def wake_by(self, moment: float) -> None:
        """See to it that the listener is asked what is due by then (monotonic seconds)."""
        if moment < self._sleeps_until:
            self._ring()

    def close(self) -> None:
        """Write what can be written, close the connection and end the thread; waits for some seconds at most."""
        self._closed = True
        self._ring()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._timeout)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._bell, self._ear = socket.socketpair()
                self._bell.setblocking(False)
                self._ear.setblocking(False)
                self._selector = selectors.DefaultSelector()
                self._selector.register(self._ear, selectors.EVENT_READ)
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def _write_now(self, write: Write) -> bool:
        """Write where nothing waits to be written before, and the socket has room; tell whether that was so."""
        link = self._link
        if link is None or link.is_encrypted or self._closed or self._outbox:
            return False
        if not self._writing.acquire(blocking=False):
            return False
        try:
            if link is not self._link or self._blocked or not link.has_room():
                return False
            write(link.channel)
        except CONNECTION_ERRORS as error:
            self._news.append(_Broken(link, error))
            self._ring()
        finally:
            self._writing.release()
        return True

    def _ring(self) -> None:
        """Wake the thread, once for all that is given to it before it wakes."""
        if not self._rung and self._bell is not None:
            self._rung = True
            try:
                self._bell.send(b"\0")
            except OSError:  # It is full, so it was rung; or closed, so nobody listens.
                return

    # What follows is called in the wire's thread, but for `_connect`.

    def _run(self) -> None:
        while not self._closed:
            try:
                self._turn()
            except CONNECTION_ERRORS as error:
                self._lose(error)
            except Exception as error:
                logger.exception("%s: unexpected", self._name)
                self._lose(error)
        self._end()

    def _turn(self) -> None:
        # Until it is known how long to sleep, whoever has something that is due wakes this thread.
        self._sleeps_until = math.inf
        pause = self._seconds_to_next()
        self._sleeps_until = math.inf if pause is None else time.monotonic() + pause
        ready = {key.fileobj for key, _events in self._selector.select(pause)}
        if self._ear in ready:
            self._hear()
        # A broker may take nothing for hours: what nobody waits for any more must not pile up meanwhile.
        self._forget_stale()
        if self._link is None:
            self._connect_if_due()
            return
        if self._link.socket in ready or self._link.has_decrypted():
            self._link.receive()
        self._read(self._link)
        if self._link is not None:
            self._write(self._link)
        if self._link is not None:
            self._beat(self._link)

    def _seconds_to_next(self) -> float | None:
        now = time.monotonic()
        pauses = [self._listener.due()]
        if self._link is not None:
            busy = (self._outbox and not self._blocked) or self._link.has_frame() or self._link.has_decrypted()
            pauses.append(0.0 if busy else self._beat_at - now)
        elif self._outbox and not self._connecting:
            pauses.append(self._retry_at - now)
        known = [pause for pause in pauses if pause is not None]
        return max(0.0, min(known)) if known else None

    def _hear(self) -> None:
        self._ear.recv(64)
        # Before the outbox is looked at: what is put there from now on rings again.
        self._rung = False
        while self._news:
            news = self._news.popleft()
            match news:
                case _Broken(link, error):
                    if link is self._link:
                        self._lose(error)
                case Link():
                    self._take_up(news)
                case _:
                    self._put_off(news)

    def _take_up(self, link: Link) -> None:
        self._connecting, self._unreachable, self._pause = False, None, _FIRST_PAUSE
        self._link = link
        self._selector.register(link.socket, selectors.EVENT_READ)
        self._beat_at = time.monotonic() + self._heartbeat / 4

    def _put_off(self, error: Exception) -> None:
        self._connecting, self._unreachable = False, self._told(error)
        self._retry_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _forget_stale(self) -> None:
        now = time.monotonic()
        while self._outbox and self._outbox[0][0] <= now:
            self._outbox.popleft()

    def _connect_if_due(self) -> None:
        if self._outbox and not self._connecting and time.monotonic() >= self._retry_at:
            self._connecting = True
            threading.Thread(target=self._connect, name=f"{self._name} connects", daemon=True).start()

    def _connect(self) -> None:
        connection = None
        try:
            connection = self._where.transport.establish_connection()
            channel = connection.channel()
            self._listener.opened(channel)
            self._news.append(Link.of(connection, channel, timeout=self._timeout))
        except Exception as error:  # noqa: BLE001 - Whatever it is, those who wait are told.
            self._news.append(error)
            self._where.maybe_switch_next()
            _let_go(connection)
        self._ring()
        if self._closed:
            _let_go(connection)

    def _read(self, link: Link) -> None:
        """Read the frames that are there whole: for the end of another one py-amqp would wait while deadlines pass."""
        for _ in range(_BATCH):
            if not link.has_frame():
                return
            link.connection.blocking_read(self._timeout)

    def _write(self, link: Link) -> None:
        for _ in range(min(len(self._outbox), _BATCH)):
            if self._blocked:
                return
            _until, write = self._outbox[0]
            try:
                with self._writing:
                    write(link.channel)
            finally:
                # Only now, so that nobody who writes by himself comes between.
                self._outbox.popleft()

    def _beat(self, link: Link) -> None:
        now = time.monotonic()
        if now >= self._beat_at:
            with self._writing:
                link.connection.heartbeat_tick()
            self._beat_at = now + self._heartbeat / 4

    def _lose(self, error: Exception) -> None:
        with self._writing:
            link, self._link, self._blocked = self._link, None, False
        if link is None:
            return
        self._selector.unregister(link.socket)
        _let_go(link.connection)
        if not self._closed:
            logger.info("%s: connection lost: %r", self._name, error)
        self._listener.lost(self._told(error))

    def _end(self) -> None:
        link = self._link
        if link is not None:
            try:
                while self._outbox and not self._blocked:
                    self._write(link)
                link.socket.settimeout(1)
                link.connection.close()
            except CONNECTION_ERRORS as error:
                logger.info("%s: closed in disorder: %r", self._name, error)
        self._lose(BrokerUnreachable("this connection was closed"))
        for news in self._news:
            if isinstance(news, Link):
                _let_go(news.connection)
        self._outbox.clear()
        self._selector.close()
        for each in (self._ear, self._bell):
            if each is not None:
                each.close()

    def _told(self, error: Exception) -> BrokerUnreachable:
        return BrokerUnreachable(f"broker {self._where.as_uri()}: {connection_error_text(error)}")

    def _on_blocked(self, _reason: str) -> None:
        """Note that the broker reads no more of this connection (`connection.blocked`)."""
        self._blocked = True

    def _on_unblocked(self) -> None:
        self._blocked = False


def publish(channel: Any, message: Outgoing) -> None:
    """Write a message to a wire's channel.

    Not by `basic_publish`, which first reads whatever the broker may have to say: the wire reads by itself.
    """
    arguments = (0, message.exchange, message.routing_key, message.mandatory, False)
    channel.send_method(spec.Basic.Publish, "Bssbb", arguments, wire_message(channel, message))


def _let_go(connection: Any) -> None:
    if connection is not None:
        try:
            if connection.connected:  # Else TLS waits for the other side's farewell.
                connection.sock.settimeout(0)
            connection.collect()
        except CONNECTION_ERRORS:
            return
