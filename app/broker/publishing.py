"""Publishing with confirms: many messages at once, each persistent, mandatory and confirmed by the broker."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from amqp.exceptions import AccessRefused, FrameSyntaxError, NotFound, RecoverableConnectionError
from kombu import Connection, Queue

from .combining import Combiner
from .confirms import CONFIRM_LIMIT, Answer, Confirms, Transfer
from .connection import BROKER_TIMEOUT, CONNECTION_ERRORS, connection_to
from .declaring import node_down
from .errors import InvalidMessage, PublishFailed, QueueUnavailable, Unroutable
from .outgoing import Outgoing, wire_message

#: Messages published before their confirms are awaited.
_WINDOW = 500

#: Returned messages that an error shows, and bytes of the body of each.
_MAX_SHOWN, _SHOWN_BODY = 3, 200

#: Messages of failed calls that are remembered, so that a second attempt sends no more than necessary.
_MAX_FAILED = 5_000

#: What a socket or the broker raises when a connection is lost, through no fault of a message.
_LOST = (OSError, RecoverableConnectionError)

#: What py-amqp raises for a message that it cannot encode.
_UNENCODABLE = (struct.error, FrameSyntaxError, TypeError, ValueError, AttributeError, OverflowError, InvalidMessage)

#: Seconds to read what the broker has sent already.
_NO_WAIT = 0.001

#: Why nothing is sent while the broker blocks the connection.
BLOCKED = "the broker takes no messages, it is low on memory or disk"


class _NoAnswer(Exception):
    """Raised when confirms are late on a connection that works, or on a blocked one."""


class Publisher:
    """One connection and one channel in confirm mode, opened when first used. Safe for use by several threads.

    What several threads publish while one waits for its confirms is sent together, and waits once.

    A blocked connection (`connection.blocked`) stays open, and nothing is sent meanwhile. The broker publishes what it
    has not read yet when its alarm ends, even from a closed connection: each further attempt would be a duplicate.
    A connection also stays open on which the broker answers and only a confirm is late. After `confirm_limit` seconds
    the confirm counts as lost, and the connection is opened again: the next attempt may make one duplicate. The limit
    is doubled for each time that the confirm of the same message was lost.

    With `once`, no message is sent again that may have arrived: its error is in doubt.

    A channel that received a nack is replaced. On RabbitMQ 3.10 a channel whose first publish fell into a leader
    election of a quorum queue receives a nack for every later one.
    """

    def __init__(
        self, url: str, *, timeout: float = BROKER_TIMEOUT, confirm_limit: float = CONFIRM_LIMIT, once: bool = False
    ) -> None:
        self._url = url
        self._once = once
        self._timeout = timeout
        self._confirm_limit = confirm_limit
        #: Called when the broker has confirmed messages, with the seconds of the send and the wait.
        self.on_confirmed: Callable[[float], None] | None = None
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._channel: Any = None
        self._confirms: Confirms | None = None
        self._blocked = False
        #: Those of calls that failed, by the identity of the message.
        self._failed: dict[int, Transfer] = {}
        self._declared: set[str] = set()
        self._refused: set[str] = set()
        self._publish_combined = Combiner(self._publish_calls)

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Publish all and wait until the broker has confirmed each.

        Raises PublishFailed if a message is refused, unroutable, or not confirmed within the timeout; and at once while
        the broker blocks the connection. Any of them may have arrived then: a second attempt may duplicate messages,
        and loses none. A second attempt with the same objects sends none again that the broker has confirmed or still
        can confirm. Raises what py-amqp raises for a message that it cannot encode.
        """
        for failure in self._publish_combined((messages, False)).values():
            raise failure

    def publish_each(self, messages: Sequence[Outgoing]) -> dict[int, Exception]:
        """Publish as many as possible; return by position why the others may not have arrived, as `publish` raises."""
        return self._publish_combined((messages, True))

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
                queue(self._open_channel()[0]).queue_declare(passive=True)
            except CONNECTION_ERRORS as error:
                # The broker has closed the channel, too.
                self._drop()
                if not isinstance(error, NotFound):
                    raise PublishFailed(f"queue {queue.name} not found: {error!r}") from error
            else:
                return False
        self.declare([queue])
        return True

    def sending_once(self) -> Publisher:
        """Return a publisher for the same broker, on a connection of its own, that sends no message twice."""
        return Publisher(self._url, timeout=self._timeout, confirm_limit=self._confirm_limit, once=True)

    def close(self) -> None:
        """Close the connection; a later publish opens a new one."""
        with self._lock:
            self._drop()

    def _declare(self, queue: Queue) -> None:
        if queue.name not in self._refused:
            try:
                queue(self._open_channel()[0]).declare()
            except AccessRefused:
                # py-amqp opens the closed channel again, but not in confirm mode.
                self._drop()
                self._refused.add(queue.name)
            else:
                return
        # A check for existence needs no permission.
        self._open_channel()[0].queue_declare(queue.name, passive=True)

    def _publish_calls(self, calls: Sequence[tuple[Sequence[Outgoing], bool]]) -> list[dict[int, Exception]]:
        """Publish the messages of several calls together, in windows; return the failures of each call by position.

        The second value of a call says whether its later windows are published after a failure.
        """
        to_the_end = len(calls) > 1 or calls[0][1]
        failures: dict[int, Exception] = {}
        transfers: list[Transfer] = []
        with self._lock:
            for message in chain.from_iterable(given for given, _ in calls):
                transfer = self._failed.pop(id(message), None)
                if transfer is None or not (transfer.is_open or transfer.answer is Answer.CONFIRMED):
                    transfer = Transfer(message)
                transfers.append(transfer)
            for start in range(0, len(transfers), _WINDOW):
                if to_the_end or not failures:
                    sent = self._send(transfers[start : start + _WINDOW])
                    failures |= {start + position: failure for position, failure in sent.items()}
            if failures:
                self._failed |= {id(each.message): each for each in transfers}
                for key in [*self._failed][:-_MAX_FAILED]:
                    del self._failed[key]
        split, first = [], 0
        for given, _ in calls:
            failed = [position for position in range(len(given)) if first + position in failures]
            split.append({position: failures[first + position] for position in failed})
            first += len(given)
        return split

    def _send(self, transfers: Sequence[Transfer]) -> dict[int, Exception]:
        """Send messages and wait for the answers; return by position why some may not have arrived."""
        try:
            self._require_unblocked()
        except PublishFailed as blocked:
            return dict.fromkeys(range(len(transfers)), blocked)
        was_open, began = self._channel is not None, time.perf_counter()
        error = self._try(transfers)
        if was_open and isinstance(error, _LOST) and not isinstance(error, TimeoutError):
            # An idle connection may have broken long ago: try once on a new one.
            error = self._try(transfers)
        failures = self._failures(transfers, error)
        if self.on_confirmed and len(failures) < len(transfers):
            self.on_confirmed(time.perf_counter() - began)
        return failures

    def _try(self, transfers: Sequence[Transfer]) -> Exception | None:
        """Send what the present channel has not sent yet, and wait for answers; return the error that ended this."""
        try:
            channel, confirms = self._open_channel()
            for transfer in transfers:
                if transfer.is_open and transfer.channel is not channel and not (self._once and transfer.was_sent):
                    self._write(channel, confirms, transfer)
            self._await_answers(confirms, {each.tag for each in transfers if each.is_open and each.channel is channel})
        except _NoAnswer as error:
            return error
        except CONNECTION_ERRORS as error:
            if self._blocked and isinstance(error, TimeoutError):
                # A part of a frame was written. What was sent before may still arrive.
                self._channel = None
            else:
                self._drop()
            return error
        except BaseException:
            # An interrupt may come within a frame.
            self._drop()
            raise
        return None

    def _write(self, channel: Any, confirms: Confirms, transfer: Transfer) -> None:
        message = transfer.message
        try:
            channel.basic_publish(
                wire_message(channel, message),
                exchange=message.exchange,
                routing_key=message.routing_key,
                mandatory=message.mandatory,
            )
        except _UNENCODABLE as error:
            # Nothing was written: py-amqp encodes a whole message first.
            transfer.error = error
        else:
            confirms.expect(transfer)

    def _failures(self, transfers: Sequence[Transfer], error: Exception | None) -> dict[int, Exception]:
        """Return by position why messages may not have arrived; `error` is for those without an answer."""
        answers = Counter(each.answer for each in transfers if each.error is None)
        if answers[Answer.CONFIRMED] == len(transfers):
            return {}
        if answers[Answer.RETURNED]:
            # A declared queue may have been deleted since; the next attempt declares it again.
            self._declared.clear()
        why = BLOCKED if self._blocked else repr(error)
        returned = {
            f"exchange {each.exchange!r} with key {each.routing_key!r}: {each.body[:_SHOWN_BODY]!r}"
            for each in (transfer.message for transfer in transfers if transfer.answer is Answer.RETURNED)
        }
        shown = ", ".join(sorted(returned)[:_MAX_SHOWN])
        failures = {
            Answer.NONE: PublishFailed(f"{answers[Answer.NONE]} message(s) not confirmed: {why}"),
            Answer.REFUSED: PublishFailed(
                f"the broker refused {answers[Answer.REFUSED]} of {len(transfers)} message(s)"
            ),
            Answer.RETURNED: Unroutable(
                f"{answers[Answer.RETURNED]} message(s) returned, no queue is bound for {shown}"
            ),
        }
        in_doubt = PublishFailed(str(failures[Answer.NONE]))
        in_doubt.is_in_doubt = True
        in_doubt.__cause__ = failures[Answer.NONE].__cause__ = error
        return {
            position: each.error or (in_doubt if each.is_open and each.was_sent else failures[each.answer])
            for position, each in enumerate(transfers)
            if each.answer is not Answer.CONFIRMED
        }

    def _require_unblocked(self) -> None:
        """Raise PublishFailed while the broker blocks the connection, after reading what it has sent by now."""
        while self._blocked and self._connection:
            try:
                self._connection.drain_events(timeout=_NO_WAIT)
            except TimeoutError:
                raise PublishFailed(BLOCKED) from None
            except CONNECTION_ERRORS:
                self._drop()

    def _await_answers(self, confirms: Confirms, tags: set[int]) -> None:
        """Wait until every message has an answer; raises _NoAnswer, or what broke the connection."""
        deadline = time.monotonic() + self._timeout
        while self._connection and not tags.isdisjoint(confirms.unanswered):
            try:
                self._connection.drain_events(timeout=max(_NO_WAIT, deadline - time.monotonic()))
            except TimeoutError as error:
                if not self._blocked:
                    # Answered at once where only the confirms are late. Otherwise, another node may be well.
                    self._channel.basic_qos(0, 0, False)
                    if confirms.count_late_as_lost(self._confirm_limit):
                        self._drop()
                raise _NoAnswer(f"no confirm in {self._timeout:g} s") from error

    def _open_channel(self) -> tuple[Any, Confirms]:
        confirms = self._confirms
        if self._channel is None or confirms is None or not self._channel.is_open or confirms.has_refused:
            self._drop()
            self._connection = connection_to(
                self._url,
                timeout=self._timeout,
                on_blocked=lambda _reason: self._set_blocked(True),
                on_unblocked=lambda: self._set_blocked(False),
            )
            self._connection.connect()
            self._channel = self._connection.channel()
            confirms = self._confirms = Confirms(self._channel)
        return self._channel, confirms

    def _drop(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        self._confirms, self._blocked = None, False
        self._declared.clear()
        if connection is not None:
            with suppress(*CONNECTION_ERRORS):
                connection.collect(socket_timeout=1)

    def _set_blocked(self, blocked: bool) -> None:
        """Note whether the broker stopped reading from this connection (`connection.blocked`)."""
        self._blocked = blocked
        if self._confirms and not blocked:
            self._confirms.restart_wait()


_publishers: dict[tuple[int, str], Publisher] = {}


def get_publisher(url: str, *, timeout: float = BROKER_TIMEOUT) -> Publisher:
    """Return this process's publisher for a broker; a forked child gets its own, never its parent's socket."""
    key = (os.getpid(), url)
    if key not in _publishers:
        _publishers[key] = Publisher(url, timeout=timeout)
    return _publishers[key]
