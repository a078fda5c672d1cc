"""The orchestrator's service: answer requests, send orders and scan the store, all in one event loop."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from app.broker.delivery import Delivery
from app.broker.errors import InvalidMessage, PublishFailed
from app.broker.outgoing import Outgoing
from app.broker.rpc.responder import RequestHandler, Responder
from app.cluster.orchestrator.state import OrchestratorState
from app.cluster.orchestrator.store_scan import ScanSchedule, StoreGuard
from app.cluster.protocol import (
    MISSED_HEARTBEATS,
    Load,
    OrderOutcome,
    RoutesRequest,
    SearcherReport,
    problem_reply,
    read,
    to_json,
    to_payload,
)
from app.messages.envelopes import event_message, searcher_message
from app.storage.store import ObjectStore
from app.topology.queues import events_exchange
from config.routes import HEARTBEAT, REGISTER_AGAIN, SEARCHER_QUEUE, searcher_of

log = logging.getLogger(__name__)

#: Seconds between two turns.
TURN_INTERVAL: Final = 0.05
#: Pause after a placement decision, times what the decision took: at most a tenth of the event loop goes to decisions.
DECISION_PAUSE: Final = 9
#: Seconds in which searchers register before anything is placed.
REGISTRATION_TIME: Final = 1.0
#: Seconds before `register_again` is published again after a failure.
_PUBLISH_BACKOFF: Final = 1.0


class RegistrationTime:
    """Requests that searchers register again, and gives them time to do so."""

    def __init__(self, publish: Callable[[Sequence[Outgoing]], None]) -> None:
        """`publish` publishes events or raises PublishFailed."""
        self._publish = publish
        self._due_at: float | None = None
        self._ends_at: float | None = None

    def begin(self, *, now: float) -> None:
        """Publish the request with the next turn."""
        self._due_at = now

    def turn(self, *, now: float) -> None:
        """Publish the request if it is due, and again later if that fails."""
        if self._due_at is None or now < self._due_at:
            return
        try:
            self._publish([event_message(REGISTER_AGAIN, {})])
        except PublishFailed as error:
            log.warning("%s not published, again in %g s: %s", REGISTER_AGAIN, _PUBLISH_BACKOFF, error)
            self._due_at = now + _PUBLISH_BACKOFF
        else:
            self._due_at, self._ends_at = None, now + REGISTRATION_TIME

    def has_ended(self, *, now: float) -> bool:
        """Return whether the request was published and running searchers had time to register."""
        return self._ends_at is not None and now >= self._ends_at


class OrchestratorService:
    """Answers requests, sends orders and advances the state.

    All methods run in the thread of the worker's event loop. Only the responder's `returned` callback runs in another.
    """

    def __init__(
        self,
        *,
        replicas: int,
        heartbeat: float,
        store: Callable[[], ObjectStore],
        respond: Callable[..., Responder],
        publish: Callable[[Sequence[Outgoing]], None],
        every: Callable[[float, Callable[[], None]], Callable[[], None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`replicas` and `heartbeat` are those of the settings.

        `store` opens the store. `respond(handlers, problem=..., returned=...)` makes the responder. `publish` publishes
        events or raises PublishFailed. `every(seconds, function)` calls a function periodically and returns a function
        that ends it.
        """
        self.state = OrchestratorState(replicas=replicas, heartbeat=heartbeat, now=clock())
        guard = StoreGuard()
        self._schedule = ScanSchedule(store, check=guard.check)
        self._registration = RegistrationTime(publish)
        self._every = every
        self._clock = clock
        # An order expires before it would be sent again, so that it is not executed twice.
        self._order_expiration = str(round(MISSED_HEARTBEATS * heartbeat * 1_000))
        handlers: dict[str, RequestHandler] = {
            "search": self._forward,
            "suggest": self._forward,
            "get_routes": lambda _delivery, payload: to_json(
                replace(self.state.routes(read(RoutesRequest, payload), now=self._clock()), store_id=guard.store_id)
            ),
            HEARTBEAT: self._receive_heartbeat,
        }
        #: Queues that do not exist, what was sent there, and when it came back.
        self._returned: queue.SimpleQueue[tuple[str, Delivery, float]] = queue.SimpleQueue()
        self._responder = respond(
            handlers,
            problem=lambda error: to_json(problem_reply(error, process="orchestrator")),
            returned=lambda name, delivery: self._returned.put((name, delivery, clock())),
        )
        self._stop: Callable[[], None] = lambda: None
        self._may_place_at = clock()

    # Called by the worker.

    def take(self, delivery: Delivery) -> None:
        """Answer a request, or forward it to a searcher."""
        self._responder.take(delivery)

    def connected(self) -> None:
        """Request that searchers register again, and start the periodic turns."""
        self.state.connected(now=self._clock())
        self._registration.begin(now=self._clock())
        self._stop()
        self._stop = self._every(TURN_INTERVAL, self.turn)
        self.turn()

    def close(self) -> None:
        """Stop; the state is not persisted."""
        self._stop()
        self._responder.close()

    def receive_report(self, report: SearcherReport) -> None:
        """Receive a searcher's registration or heartbeat."""
        self.state.receive_report(report, now=self._clock())

    def _receive_heartbeat(self, delivery: Delivery, payload: dict[str, Any]) -> None:
        if delivery.exchange != events_exchange.name:
            raise InvalidMessage(f"a heartbeat came from {delivery.exchange}, to which clients publish")
        self.receive_report(read(SearcherReport, payload))

    def receive_outcome(self, outcome: OrderOutcome) -> None:
        """Receive `loaded`, `unloaded` or `failed`."""
        self.state.receive_outcome(outcome, now=self._clock())

    def pack_updated(self, domain: str) -> None:
        """Read a domain's pack from the store again, soon and in a thread."""
        self._schedule.request(domain)

    # Passage of time.

    def turn(self) -> None:
        """Process returned messages and finished scans, start due scans and send due orders."""
        now = self._clock()
        while not self._returned.empty():
            name, delivery, at = self._returned.get()
            self.state.remove_searcher(searcher_of(name) or "", "its queue does not exist", unless_registered_since=at)
            if delivery.properties.get("reply_to"):
                # A client waits for a reply: forward its request to another searcher.
                self.take(delivery)
        self._registration.turn(now=now)
        for result in self._schedule.results(domains=self.state.known_domains, now=now):
            for pack in result.packs:
                self.state.pack_updated(pack)
            for domain in sorted(result.deleted):
                self.state.pack_deleted(domain)
        self._schedule.start_due(domains=self.state.domains, unclear=self.state.unclear_domains, now=now)
        if self._schedule.is_complete and self._registration.has_ended(now=now):
            self.state.begin_placing()
        began = self._clock()
        orders = self.state.tick(now=now, may_place=began >= self._may_place_at)
        ended = self._clock()
        self._may_place_at = max(self._may_place_at, ended + DECISION_PAUSE * (ended - began))
        for addressed in orders:
            kind = "load" if isinstance(addressed.order, Load) else "unload"
            self._send(addressed.searcher_id, kind, to_payload(addressed.order))
        for searcher_id in self.state.registrations_to_request():
            self._send(searcher_id, REGISTER_AGAIN, {})

    def _send(self, searcher_id: str, kind: str, payload: dict[str, Any]) -> None:
        message = searcher_message(searcher_id, kind, payload)
        self._responder.send(replace(message, properties={**message.properties, "expiration": self._order_expiration}))

    def _forward(self, delivery: Delivery, payload: dict[str, Any]) -> None:
        domain = payload.get("domain", payload.get("host"))
        if not isinstance(domain, str):
            raise InvalidMessage(f"domain {domain!r:.100}: expected a name")
        self._responder.forward(delivery, SEARCHER_QUEUE.format(self.state.next_searcher(domain)))
