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
from app.broker.publishing import Outgoing
from app.broker.rpc.responder import Handler, Responder
from app.cluster.orchestrator.state import OrchestratorState
from app.cluster.orchestrator.store_scan import PackSource, ScanResult, StoreScan
from app.cluster.placement.model import AddressedOrder
from app.cluster.protocol import MISSED, Load, Outcome, Report, problem_reply, read, to_json, to_payload
from app.envelopes import event_message, searcher_message
from app.errors import PackNotFound
from config.routes import REGISTER_AGAIN, searcher_of, searcher_queue_name

log = logging.getLogger(__name__)

#: Seconds between two turns.
EVERY: Final = 0.05
#: Seconds in which searchers register before anything is placed.
SETTLE: Final = 1.0
#: Seconds between two scans of the whole store: an `update` may have been lost.
LOOK_EVERY: Final = 300.0
#: Seconds between two checks for unknown packs on searchers, and before the store is read for the same ones again.
DOUBT_EVERY: Final = 1.0
DOUBT_AGAIN: Final = 10.0
#: Seconds before a failed scan or publish is repeated: after the first failure, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


def problem(error: Exception) -> bytes:
    """Return the reply to a request that ended in an error."""
    return to_json(problem_reply(error, process="orchestrator"))


class OrchestratorService:
    """Answers requests, and advances the state.

    All but what the responder returns happens in the thread that calls it.
    """

    def __init__(
        self,
        *,
        replicas: int,
        heartbeat: float,
        source: PackSource,
        respond: Callable[..., Responder],
        publish: Callable[[Sequence[Outgoing]], None],
        every: Callable[[float, Callable[[], None]], Callable[[], None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`replicas` and `heartbeat` are as the settings have them.

        `respond(handlers, problem=..., returned=...)` makes the responder, and `publish` tells events or raises
        PublishFailed. `every(seconds, call)` has something called so often, until what it returns is called.
        """
        self.state = OrchestratorState(replicas=replicas, heartbeat=heartbeat, now=clock())
        self._source = source
        self._look = StoreScan(source)
        self._publish = publish
        self._every = every
        self._heartbeat = heartbeat
        self._clock = clock
        handlers: dict[str, Handler] = {
            "search": self._pass_on,
            "suggest": self._pass_on,
            "get_routes": self._routes,
            "heartbeat": self._heartbeat_of,
        }
        self._responder = respond(handlers, problem=problem, returned=self._returned)
        self._came_back: queue.SimpleQueue[tuple[str, Delivery]] = queue.SimpleQueue()
        self._stop: Callable[[], None] = lambda: None
        self._call_at: float | None = None
        self._settle_at: float | None = None
        self._look_at = self._doubt_at = clock()
        self._pause = _FIRST_PAUSE
        self._is_stocked = False

    # Called by the worker.

    def take(self, delivery: Delivery) -> None:
        """Answer a request, or forward it to a searcher."""
        self._responder.take(delivery)

    def connected(self) -> None:
        """Have searchers register again, and start the turns."""
        self.state.connected(now=self._clock())
        self._call_at = self._clock()
        self._stop()
        self._stop = self._every(EVERY, self.turn)
        self.turn()

    def close(self) -> None:
        """Stop; the state is not persisted."""
        self._stop()
        self._responder.close()

    def receive_report(self, report: Report) -> None:
        """Receive a searcher's report."""
        self.state.receive_report(report, now=self._clock())

    def order_done(self, outcome: Outcome) -> None:
        """Receive `loaded` or `unloaded`."""
        self.state.order_done(outcome, now=self._clock())

    def order_failed(self, outcome: Outcome) -> None:
        """Receive `failed`."""
        self.state.order_failed(outcome, now=self._clock())

    def pack_updated(self, domain: str) -> None:
        """Read a domain's pack from the store again; raises PackCorrupt or StoreError."""
        self._look.overtake(domain)
        try:
            self.state.pack_updated(self._source.pack(domain))
        except PackNotFound:
            self.state.pack_deleted(domain)

    # Passage of time.

    def turn(self) -> None:
        """Do what is due."""
        now = self._clock()
        self._take_what_came_back()
        self._call_searchers(now)
        self._look_into_store(now)
        if self._is_stocked and self._settle_at is not None and now >= self._settle_at:
            self.state.settle()
        for command in self.state.tick(now=now):
            self._send(command)

    def _take_what_came_back(self) -> None:
        while not self._came_back.empty():
            name, delivery = self._came_back.get()
            self.state.searcher_lost(searcher_of(name) or "", "its queue does not exist")
            if delivery.properties.get("reply_to"):
                # A client waits for a reply: forward it to another searcher.
                self.take(delivery)

    def _call_searchers(self, now: float) -> None:
        if self._call_at is None or now < self._call_at:
            return
        try:
            self._publish([event_message(REGISTER_AGAIN, {})])
        except PublishFailed as error:
            log.warning("register_again not published, it is repeated: %s", error)
            self._call_at = self._clock() + _FIRST_PAUSE
        else:
            self._call_at = None
            self._settle_at = self._clock() + SETTLE

    def _look_into_store(self, now: float) -> None:
        found = self._look.take()
        if found is not None:
            self._note(found, now)
        if self._look.is_on:
            return
        if now >= self._look_at:
            self._look.begin(self.state.domains() | self.state.unclear_domains(), whole=True)
        elif self._is_stocked and now >= self._doubt_at:
            doubted = self.state.unclear_domains()
            self._doubt_at = now + (DOUBT_AGAIN if doubted else DOUBT_EVERY)
            if doubted:
                self._look.begin(doubted, whole=False)

    def _note(self, found: ScanResult, now: float) -> None:
        if found.error:
            log.warning("Scan of the store failed, again in %g s: %s", self._pause, found.error)
            self._look_at = now + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            return
        for pack in found.packs:
            self.state.pack_updated(pack)
        for domain in sorted(found.gone):
            self.state.pack_deleted(domain)
        self._pause = _FIRST_PAUSE
        if found.whole:
            self._is_stocked = True
            self._look_at = now + LOOK_EVERY

    # Messages.

    def _send(self, command: AddressedOrder) -> None:
        """Send an order. It expires before it would be sent again, so that it is not executed twice."""
        kind = "load" if isinstance(command.order, Load) else "unload"
        order = searcher_message(command.searcher_id, kind, to_payload(command.order))
        expiration = str(round(MISSED * self._heartbeat * 1_000))
        self._responder.send(replace(order, properties={**order.properties, "expiration": expiration}))

    def _returned(self, name: str, delivery: Delivery) -> None:
        self._came_back.put((name, delivery))

    def _pass_on(self, delivery: Delivery, payload: dict[str, Any]) -> None:
        domain = payload.get("domain", payload.get("host"))
        if not isinstance(domain, str):
            raise InvalidMessage(f"domain {domain!r:.100}: expected a name")
        self._responder.forward(delivery, searcher_queue_name(self.state.next_searcher(domain)))

    def _routes(self, _delivery: Delivery, _payload: dict[str, Any]) -> bytes:
        return to_json(self.state.routes(now=self._clock()))

    def _heartbeat_of(self, _delivery: Delivery, payload: dict[str, Any]) -> None:
        self.receive_report(read(Report, payload))
