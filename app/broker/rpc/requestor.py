"""Questions to whoever answers them: many in flight on one connection, each with its deadline."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kombu import Exchange

from ..connection import CONNECTION_ERRORS
from ..delivery import raw_body
from ..errors import ApplicationError, BrokerUnreachable, PublishFailed, RequestTimedOut, Unroutable
from ..publishing import Outgoing
from .wire import Listener, Wire, publish

#: Milliseconds that AMQP takes for an expiration at most.
_LONGEST_MS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request, its body and headers as they came."""

    body: bytes
    properties: Mapping[str, Any]
    headers: Mapping[str, Any]


@dataclass(slots=True)
class _Call:
    """One request that is not answered yet; `until` is its deadline by the monotonic clock, `seconds` as given."""

    id: str
    message: Outgoing
    future: Future[Reply]
    until: float
    seconds: float
    sent: bool = False

    def address(self) -> str:
        return f"exchange {self.message.exchange!r} with key {self.message.routing_key!r}"


class Requestor(Listener):
    """Sends requests and gives each its reply. Safe between threads; connects when first used, and again when it must.

    Replies come to an exclusive queue with a name that the broker gave, which goes with the connection
    (the "dynamic queue" of the AMQP clients document). `exchanges` are declared on each new connection: a request to an
    exchange that there is not would break it. `dropped` counts the replies that nobody waited for, late ones and second
    ones, `connections` those that were made.
    """

    def __init__(
        self, url: str, *, timeout: float = 5.0, heartbeat: float = 10.0, exchanges: Iterable[Exchange] = ()
    ) -> None:
        self._exchanges = tuple(exchanges)
        self._wire = Wire(url, self, timeout=timeout, heartbeat=heartbeat, name="requestor")
        self._prefix = uuid.uuid4().hex[:12]
        self._numbers = itertools.count()
        self._calls: dict[str, _Call] = {}
        self._lock = threading.Lock()
        self._deadlines: list[tuple[float, str]] = []
        self._reply_to = ""
        self.dropped = 0
        self.connections = 0

    def __len__(self) -> int:
        """Return the number of requests in flight."""
        return len(self._calls)

    def send(self, message: Outgoing, *, deadline: float) -> Future[Reply]:
        """Send a request, and return at once; `deadline` is in seconds from now.

        The future raises RequestTimedOut where no reply came by then, Unroutable as soon as the broker returned the
        request since no queue is bound for it, BrokerUnreachable where the connection broke meanwhile or none could be
        made by the deadline, and PublishFailed where the broker takes no messages or the request cannot be encoded. A
        request whose future failed may still be worked on.
        """
        until = time.monotonic() + deadline
        call = _Call(f"{self._prefix}.{next(self._numbers)}", message, Future(), until, deadline)
        self._calls[call.id] = call
        with self._lock:
            heapq.heappush(self._deadlines, (until, call.id))
        try:
            self._wire.submit(partial(self._write, call), until=until)
            self._wire.wake_by(until)
        except BrokerUnreachable as error:
            self._settle(call.id, error)
        return call.future

    def request(self, message: Outgoing, *, deadline: float) -> Reply:
        """Send a request and wait for its reply; raises what the future of `send` raises."""
        return self.send(message, deadline=deadline).result()

    def close(self) -> None:
        """Close the connection; what is in flight fails with BrokerUnreachable, and so does what is sent later."""
        self._wire.close()
        self._fail(BrokerUnreachable("the requestor was closed"), also_unsent=True)

    # What follows is called in the thread of the wire, but for `opened`.

    def opened(self, channel: Any) -> None:
        """Declare the reply queue, and consume from it."""
        for exchange in self._exchanges:
            exchange(channel).declare()
        queue = channel.queue_declare(queue="", durable=False, exclusive=True, auto_delete=True).queue
        channel.basic_consume(queue, no_ack=True, callback=self._received)
        channel.events["basic_return"].add(self._returned)
        self._reply_to = queue
        self.connections += 1

    def lost(self, error: BrokerUnreachable) -> None:
        """Fail what was written: its replies go to a queue that is gone."""
        self._fail(error, also_unsent=False)

    def due(self) -> float | None:
        """Fail the requests whose deadline has passed; return the seconds to the next deadline."""
        with self._lock:
            now, late = time.monotonic(), []
            while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][1] not in self._calls):
                late.append(heapq.heappop(self._deadlines)[1])
            pause = self._deadlines[0][0] - now if self._deadlines else None
        for ident in late:
            call = self._calls.get(ident)
            if call is not None:
                self._settle(ident, self._why_late(call))
        return pause

    def _why_late(self, call: _Call) -> ApplicationError:
        trouble = None if call.sent else self._wire.trouble
        return trouble or RequestTimedOut(f"{call.address()}: no reply within {call.seconds:g} s")

    def _write(self, call: _Call, channel: Any) -> None:
        left_ms = int(1_000 * (call.until - time.monotonic()))
        if call.id not in self._calls or left_ms < 1:
            return
        given = {
            "delivery_mode": 1,
            "reply_to": self._reply_to,
            "correlation_id": call.id,
            "message_id": call.id,
            "expiration": str(min(left_ms, _LONGEST_MS)),
        }
        message = replace(call.message, properties={**call.message.properties, **given}, mandatory=True)
        call.sent = True
        try:
            publish(channel, message)
        except CONNECTION_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001 - What cannot be encoded is the trouble of this request alone.
            self._settle(call.id, PublishFailed(f"{call.address()}: it cannot be sent: {error!r}"))

    def _received(self, message: Any) -> None:
        properties = dict(message.properties)
        headers = properties.pop("application_headers", None) or {}
        body = raw_body(message.body, properties.get("content_encoding"))
        self._settle(properties.get("correlation_id"), Reply(body, properties, headers))

    def _returned(self, _error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        why = f"no queue is bound for exchange {exchange!r} with key {routing_key!r}"
        self._settle(message.properties.get("correlation_id"), Unroutable(why))

    def _fail(self, error: BrokerUnreachable, *, also_unsent: bool) -> None:
        for call in list(self._calls.values()):
            if call.sent or also_unsent:
                self._settle(call.id, error)

    def _settle(self, ident: Any, outcome: Reply | ApplicationError) -> None:
        call = self._calls.pop(ident, None)
        if call is None:
            self.dropped += 1
        elif call.future.set_running_or_notify_cancel():
            if isinstance(outcome, Reply):
                call.future.set_result(outcome)
            else:
                call.future.set_exception(outcome)
