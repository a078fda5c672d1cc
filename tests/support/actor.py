"""A searcher that plays its part over AMQP as the vocabulary has it, and holds packs only by name."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu import Connection

from app.broker.publishing import Publisher
from app.cluster.protocol import Load, Outcome, PackVersion, SearcherReport, Unload, read, to_payload
from app.messages.envelopes import event_message
from app.topology.declare import declare_for_client
from app.topology.queues import searcher_queue
from config.settings import Settings
from tests.packs import version_of
from tests.support.peers import Peer

#: Seconds between its heartbeats.
HEARTBEAT = 0.5


class Actor(Peer):
    """Registers, sends heartbeats, carries out orders at once, and notes it in `orders`.

    A question is answered with its own id.
    """

    def __init__(self, settings: Settings, capacity: int) -> None:
        self.id = str(uuid.uuid4())
        super().__init__(settings.broker, searcher_queue(self.id), self._answer)
        self.orders: list[Load | Unload] = []
        self._capacity = capacity
        self._held: dict[str, PackVersion] = {}
        self._seq = 0
        self._beat_at = 0.0
        self._publisher = Publisher(settings.broker)
        with Connection(settings.broker) as connection:
            assert not declare_for_client(connection, settings)

    @property
    def domains(self) -> set[str]:
        """What it holds."""
        return set(self._held)

    def stop(self) -> None:
        """Vanish as a killed process does: its connection is cut, and its queue goes with it."""
        super().stop()
        self._publisher.close()

    def turn(self) -> None:
        """Register once, and send a heartbeat where its time has come."""
        if not self._seq:
            self._register()
        if time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + HEARTBEAT
            self._publisher.publish([event_message("heartbeat", to_payload(self._report()))])

    def _register(self) -> None:
        self._publisher.publish([event_message("register", to_payload(self._report()))])

    def _report(self) -> SearcherReport:
        self._seq += 1
        held = tuple(self._held.values())
        free = self._capacity - sum(each.size_mb for each in held)
        return SearcherReport(
            searcher_id=self.id, seq=self._seq, free_space=free, capacity=self._capacity, holdings=held
        )

    def _answer(self, request: dict[str, Any]) -> bytes | None:
        payload = dict(request)
        match payload.pop("type"):
            case "load":
                self._obey("loaded", read(Load, payload))
            case "unload":
                self._obey("unloaded", read(Unload, payload))
            case "register_again":
                self._register()
            case "search":
                return json.dumps({"by": self.id, **payload}).encode()
        return None

    def _obey(self, outcome_type: str, order: Load | Unload) -> None:
        self.orders.append(order)
        if isinstance(order, Load):
            self._held[order.domain] = version_of(order)
        else:
            del self._held[order.domain]
        outcome = Outcome(report=self._report(), domain=order.domain, sha256=order.sha256)
        self._publisher.publish([event_message(outcome_type, to_payload(outcome))])


@contextmanager
def actors(settings: Settings, *capacities: int) -> Iterator[list[Actor]]:
    """Run a searcher of each capacity in MB, for the block."""
    cast = [Actor(settings, capacity) for capacity in capacities]
    try:
        for actor in cast:
            actor.start()
        yield cast
    finally:
        for actor in cast:
            actor.stop()
