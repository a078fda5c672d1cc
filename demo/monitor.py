"""The state of the demo's domain, from broker, Redis and store: queue depths, retries, dead letters, packs."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from amqp.exceptions import AMQPError
from kombu import Connection, Queue

from app.broker.connection import tls_options
from app.broker.headers import ITERATION
from app.broker.policies.delays import delay_name
from app.errors import DemoFailed
from app.pack.manifest import Manifest
from app.sites.status import status
from app.topology.declare import all_queues
from app.topology.queues import DEAD_SET, events_exchange
from app.topology.retry_policies import site_policy
from config.routes import INDEX, POLICY_OF_QUEUE, SITE, TICK
from config.settings import Settings

#: Work queues to show, in the order of a page's life. The queue of ticks is always empty.
WORK_QUEUES = tuple(name for name in dict.fromkeys(POLICY_OF_QUEUE) if name != TICK)
#: Seconds over which pages per second are counted.
_RATE_WINDOW = 3.0


@dataclass(frozen=True, slots=True)
class MessageEvent:
    """A retry, dead letter or new pack of the domain; `url` is empty for a message without a page."""

    kind: Literal["retry", "dead", "pack"]
    type: str
    text: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class QueueDepths:
    """Ready messages: in each work queue, in all delay queues together, and in the dead set."""

    work: Mapping[str, int]
    delayed: int
    dead: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`indexed` of `seen` pages at `rate` pages per second; `timer` is in seconds, None if no timer is running."""

    seen: int
    indexed: int
    open: int
    rate: float
    depths: QueueDepths
    timer: float | None
    callback: str
    pack: Manifest | None
    consumers: int
    retried: int
    new_events: tuple[MessageEvent, ...]

    @property
    def progress(self) -> tuple[object, ...]:
        """The values that change while any work is done."""
        return self.seen, self.indexed, self.open, self.retried, self.depths, self.pack, self.consumers, self.timer

    def dead_letter_text(self, message_type: str) -> str | None:
        """Return the text of a new dead letter of this message type, or None."""
        events = (event for event in self.new_events if event.kind == "dead" and event.type == message_type)
        return next((event.text for event in events), None)


class BrokerMonitor:
    """Reads queue depths and counts retries and dead letters, on its own connection.

    Retries and dead letters pass fanout exchanges. A private queue bound to these exchanges receives a copy of each
    message. The counts are therefore exact, and no message is taken from its queue.
    """

    def __init__(self, settings: Settings, domain: str) -> None:
        self._domain = domain
        self._retries: set[tuple[str, int, str]] = set()
        self._connection = Connection(settings.broker, ssl=tls_options(settings.broker), connect_timeout=5)
        try:
            self._channel = self._connection.channel()
            self._queues = [queue.name for queue in all_queues(settings) if queue.name != TICK]
            events_exchange(self._channel).declare()
            for queue in all_queues(settings):
                queue(self._channel).declare()
            self._copies = Queue("", exclusive=True, auto_delete=True, durable=False)(self._channel)
            self._copies.name = self._copies.queue_declare().queue
            for delay in site_policy(settings).delays_ms():
                self._copies.bind_to(exchange=delay_name(SITE, delay), routing_key="")
            self._copies.bind_to(exchange=DEAD_SET, routing_key="")
            self._copies.bind_to(exchange=events_exchange.name, routing_key="update")
        except (AMQPError, OSError) as error:
            raise DemoFailed(f"the broker cannot be used: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closes the socket without AMQP's closing handshake: a signal may have interrupted a reply.
        self._connection.collect(socket_timeout=1)

    @property
    def retried(self) -> int:
        """Number of hops of the domain's messages through a delay queue after a failure."""
        return len(self._retries)

    def consumers(self) -> int:
        """Return the number of workers that consume the first queue."""
        return int(self._channel.queue_declare(INDEX, passive=True).consumer_count)

    def depths(self) -> QueueDepths:
        """Return the present depths of all queues."""
        ready = {name: int(self._channel.queue_declare(name, passive=True).message_count) for name in self._queues}
        delayed = sum(count for name, count in ready.items() if name not in WORK_QUEUES and name != DEAD_SET)
        return QueueDepths({name: ready[name] for name in WORK_QUEUES}, delayed, ready[DEAD_SET])

    def events(self) -> Iterator[MessageEvent]:
        """Yield the events of the domain's messages since the last call."""
        while (message := self._copies.get(no_ack=True)) is not None:
            try:
                payload = json.loads(message.body)
            except ValueError:
                continue
            if isinstance(payload, dict) and payload.get("domain") == self._domain:
                event = self._event(message, payload)
                if event is not None:
                    yield event

    def _event(self, message: Any, payload: Mapping[str, Any]) -> MessageEvent | None:
        """Return the event that a copied message shows; None for a postponement, and for a retry seen before."""
        exchange, headers = message.delivery_info["exchange"], message.headers or {}
        message_type, url = str(payload.get("type")), str(payload.get("url", ""))
        page = urlsplit(url).path or self._domain
        if exchange == events_exchange.name:
            text = f"pack {payload.get('generation')} is published: {payload.get('pages')} pages"
            return MessageEvent("pack", message_type, text)
        if exchange == DEAD_SET:
            reason = headers.get("perennial-message") or headers.get("perennial-reason")
            return MessageEvent("dead", message_type, f"{message_type} of {page} is dead-lettered: {reason}", url)
        # Postponed messages share delay queues with retries; only a retry has an error.
        error = headers.get("perennial-last-error")
        replay = str(headers.get("perennial-replay-of", ""))
        run = (str(message.properties.get("message_id")), int(headers.get(ITERATION, 0)), replay)
        if error is None or run in self._retries:
            return None
        self._retries.add(run)
        return MessageEvent(
            "retry", message_type, f"{message_type} of {page} failed ({error}); retry after {exchange}", url
        )


class DomainMonitor:
    """Takes snapshots of a domain."""

    def __init__(self, settings: Settings, domain: str, broker: BrokerMonitor) -> None:
        self._settings = settings
        self._domain = domain
        self._broker = broker
        self._dead_pages: set[str] = set()
        self._counts: deque[tuple[float, int]] = deque()

    def snapshot(self) -> Snapshot:
        """Return the present state."""
        new_events = tuple(self._broker.events())
        self._dead_pages |= {event.url for event in new_events if event.kind == "dead" and event.type == "index"}
        domain = status(self._domain, settings=self._settings, reasons=False)
        # A crawl keeps a page that failed, for the copy of an earlier crawl. This is the first crawl.
        indexed = max(0, domain.indexed - len(self._dead_pages))
        now = time.monotonic()
        self._counts.append((now, indexed))
        while len(self._counts) > 2 and self._counts[0][0] < now - _RATE_WINDOW:
            self._counts.popleft()
        began, before = self._counts[0]
        return Snapshot(
            seen=domain.seen,
            indexed=indexed,
            open=domain.open,
            rate=max(0.0, (indexed - before) / (now - began)) if now > began else 0.0,
            depths=self._broker.depths(),
            timer=domain.timer,
            callback=domain.callback or "",
            pack=Manifest(**domain.pack) if domain.pack else None,
            consumers=self._broker.consumers(),
            retried=self._broker.retried,
            new_events=new_events,
        )

    def forget_dead_pages(self) -> None:
        """Count the dead pages as indexed again, because their messages were replayed."""
        self._dead_pages.clear()
