"""An orchestrator that a test controls: it exchanges messages with searchers over a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from kombu import Connection

from app.broker.outgoing import Outgoing
from app.broker.publishing import Publisher
from app.broker.rpc.requestor import Requestor
from app.cluster.protocol import Load, OrderOutcome, ProblemReply, SearcherReport, read, to_payload
from app.messages import envelopes
from app.search.contract import SearchReply
from app.topology.queues import events_exchange
from config.routes import REGISTER_AGAIN
from tests.support.waiting import eventually

#: The types of searchers' events, and the payload of each.
_EVENTS: dict[str, type[SearcherReport | OrderOutcome]] = {
    "register": SearcherReport,
    "heartbeat": SearcherReport,
    "loaded": OrderOutcome,
    "unloaded": OrderOutcome,
    "failed": OrderOutcome,
}


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """One message of a searcher: its type, its payload as a value, its AMQP properties."""

    type: str
    value: Any
    properties: dict[str, Any]

    @property
    def report(self) -> SearcherReport:
        """The report, or that of the outcome."""
        report: SearcherReport = self.value if isinstance(self.value, SearcherReport) else self.value.report
        return report


@dataclass
class FakeOrchestrator:
    """Receives the messages of every searcher of a broker, in order, and sends orders."""

    publisher: Publisher
    requestor: Requestor
    channel: Any
    queue: str
    received: list[ReceivedMessage] = field(default_factory=list)

    def mark(self) -> int:
        """Receive the messages that have arrived; return the number of all so far, for `after`."""
        while (message := self.channel.basic_get(self.queue, no_ack=True)) is not None:
            payload = json.loads(message.body)
            kind = payload.pop("type")
            value = read(_EVENTS[kind], payload)
            self.received.append(ReceivedMessage(kind, value, dict(message.properties)))
        return len(self.received)

    def receive(
        self, *kinds: str, condition: Callable[[ReceivedMessage], bool] = lambda _: True, after: int = 0
    ) -> ReceivedMessage:
        """Wait for a message of a type that meets the condition, beyond the first `after` of all, and return it."""

        def find() -> ReceivedMessage | None:
            self.mark()
            return next((each for each in self.received[after:] if each.type in kinds and condition(each)), None)

        found = eventually(find, f"a searcher sends {kinds}", seconds=60)
        assert found is not None
        return found

    def order(self, searcher_id: str, load: Load) -> ReceivedMessage:
        """Order a searcher to load a pack, and return the message with the outcome."""
        mark = self.mark()
        self.publisher.publish([searcher_message(searcher_id, "load", **to_payload(load))])
        return self.receive("failed", "loaded", condition=lambda each: each.value.domain == load.domain, after=mark)

    def request_registration(self) -> None:
        """Request that every searcher registers."""
        self.publisher.publish([envelopes.event_message(REGISTER_AGAIN, {})])

    def search(self, searcher_id: str, domain: str, q: str, **fields: Any) -> SearchReply | ProblemReply:
        """Query a searcher and return its reply; raises Unroutable, RequestTimedOut."""
        request = searcher_message(searcher_id, "search", domain=domain, q=q, **fields)
        return answer_of(self.requestor.request(request, deadline=20).body)


def searcher_message(searcher_id: str, kind: str, **payload: Any) -> Outgoing:
    """Return a message for a searcher's own queue."""
    return envelopes.searcher_message(searcher_id, kind, payload)


def answer_of(body: bytes) -> SearchReply | ProblemReply:
    """Return the value of a reply to `search`."""
    payload = json.loads(body)
    return read(ProblemReply, payload) if "reason" in payload else read(SearchReply, payload)


@contextmanager
def fake_orchestrator(url: str) -> Iterator[FakeOrchestrator]:
    """Yield a fake orchestrator that receives messages from now on."""
    publisher, requestor = Publisher(url), Requestor(url)
    with (
        closing(publisher),
        closing(requestor),
        Connection(url, connect_timeout=60) as connection,
        connection.channel() as channel,
    ):
        events_exchange(channel).declare()
        queue = channel.queue_declare(exclusive=True).queue
        for key in _EVENTS:
            channel.queue_bind(queue, events_exchange.name, key)
        yield FakeOrchestrator(publisher, requestor, channel, queue)
