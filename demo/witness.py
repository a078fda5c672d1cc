"""What the broker says: depths of its queues, and a copy of every message that fails, dies or tells of a pack."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from amqp.exceptions import AMQPError
from kombu import Connection, Queue

from app.broker.connection import tls_options
from app.broker.policies.delay_queues import ITERATION
from app.broker.policies.waiting import delay_name
from app.errors import DemoFailed
from app.topology.declare import all_queues
from app.topology.policies import site_policy
from app.topology.queues import DEAD, events_exchange
from config.routes import INDEX, POLICY_OF_QUEUE, SITE, TICK
from config.settings import Settings

#: The instant queues that are shown, in the order of a page's life. The one of ticks is empty all the time.
WORK_QUEUES = tuple(name for name in dict.fromkeys(POLICY_OF_QUEUE) if name != TICK)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a message of the domain. `page` is its path, or its domain where it has no page."""

    kind: Literal["retry", "dead", "pack"]
    type: str
    page: str
    text: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class Depths:
    """Messages ready in each instant queue, in all delay queues together, and in the dead set."""

    work: Mapping[str, int]
    waiting: int
    dead: int


class Witness:
    """Looks at a broker on a connection of its own; counts what fails from the moment it is opened.

    A retry and a death each pass a fanout exchange. A queue of the witness's own is bound to these, so that it gets a
    copy of every message that does: nothing is estimated, and no message is taken from anybody.
    """

    def __init__(self, settings: Settings, domain: str) -> None:
        self._domain = domain
        self._retries: set[tuple[str, int, str]] = set()
        self._connection = Connection(
            settings.broker, ssl=tls_options(settings.broker), connect_timeout=settings.publish_timeout
        )
        try:
            self._channel = self._connection.channel()
            self._queues = [queue.name for queue in all_queues(settings) if queue.name != TICK]
            events_exchange(self._channel).declare()
            for queue in all_queues(settings):
                queue(self._channel).declare()
            self._copies = self._bind(settings)
        except (AMQPError, OSError) as error:
            raise DemoFailed(f"the broker cannot be used: {error}") from error

    def _bind(self, settings: Settings) -> Any:
        copies = Queue("", exclusive=True, auto_delete=True, durable=False)(self._channel)
        copies.name = copies.queue_declare().queue
        for delay in site_policy(settings).delays_ms():
            copies.bind_to(exchange=delay_name(SITE, delay), routing_key="")
        copies.bind_to(exchange=DEAD, routing_key="")
        copies.bind_to(exchange=events_exchange.name, routing_key="update")
        return copies

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The socket alone, without the farewell of AMQP: a signal may have come in the middle of an answer.
        self._connection.collect(socket_timeout=1)

    @property
    def retried(self) -> int:
        """How often a message of the domain went through a delay queue because it had failed."""
        return len(self._retries)

    def consumers(self) -> int:
        """Return how many workers take messages from the first queue."""
        return int(self._channel.queue_declare(INDEX, passive=True).consumer_count)

    def depths(self) -> Depths:
        """Return the depths of all queues, exact at this moment."""
        ready = {name: int(self._channel.queue_declare(name, passive=True).message_count) for name in self._queues}
        waiting = sum(count for name, count in ready.items() if name not in WORK_QUEUES and name != DEAD)
        return Depths({name: ready[name] for name in WORK_QUEUES}, waiting, ready[DEAD])

    def events(self) -> Iterator[Event]:
        """Yield what happened to the domain's messages since the last call."""
        while (message := self._copies.get(no_ack=True)) is not None:
            payload = _payload(message.body)
            if payload.get("domain") == self._domain:
                event = self._event(message, payload)
                if event is not None:
                    yield event

    def _event(self, message: Any, payload: Mapping[str, Any]) -> Event | None:
        exchange, headers = message.delivery_info["exchange"], message.headers or {}
        kind, url = str(payload.get("type")), str(payload.get("url", ""))
        page = urlsplit(url).path or self._domain
        if exchange == events_exchange.name:
            return Event("pack", kind, page, f"pack {payload.get('generation')} written: {payload.get('pages')} pages")
        if exchange == DEAD:
            died = headers.get("perennial-message") or headers.get("perennial-reason")
            return Event("dead", kind, page, f"{kind} of {page} is dead: {died}", url)
        # A postponement may share a queue with retries; only a failure tells of an error.
        error = headers.get("perennial-last-error")
        replay = str(headers.get("perennial-replay-of", ""))
        run = (str(message.properties.get("message_id")), int(headers.get(ITERATION, 0)), replay)
        if error is None or run in self._retries:
            return None
        self._retries.add(run)
        return Event("retry", kind, page, f"{kind} of {page} failed, waits in {exchange}: {error}", url)


def _payload(body: Any) -> dict[str, Any]:
    try:
        payload = json.loads(body)
    except ValueError:
        return {}
    return payload if isinstance(payload, dict) else {}
