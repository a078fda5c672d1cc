"""A searcher that plays its part over AMQP as the vocabulary has it, and holds packs only by name."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from amqp import Message
from kombu import Connection, Consumer

from app.amqp.publish import Publisher
from app.plain import event, request
from app.search.messages import Holding, Load, Outcome, Report, Unload, read, to_payload
from app.topology import declare_base
from config.settings import Settings
from config.topology import searcher_queue

#: Seconds between its heartbeats.
HEARTBEAT = 0.5


class Actor:
    """Registers, sends heartbeats, does what it is told at once, and notes it in `orders`.

    `obeys` false: it notes orders, and nothing comes of them. A question is answered with its own id.
    """

    def __init__(self, settings: Settings, capacity: int) -> None:
        self.id = str(uuid.uuid4())
        self.orders: list[Load | Unload] = []
        self.obeys = True
        self._capacity = capacity
        self._held: dict[str, Holding] = {}
        self._seq = 0
        self._beat_at = 0.0
        self._stopped = threading.Event()
        self._publisher = Publisher(settings.broker)
        self._connection = Connection(settings.broker)
        with self._connection.channel() as channel:
            declare_base(channel, settings)
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    @property
    def domains(self) -> set[str]:
        """What it holds."""
        return set(self._held)

    def die(self) -> None:
        """Vanish as a killed process does: its connection is cut, and its queue goes with it."""
        self._stopped.set()
        self._thread.join()

    def _play(self) -> None:
        try:
            with self._connection.channel() as channel, self._consumer(channel):
                self._register()
                while not self._stopped.is_set():
                    self._turn()
        finally:
            self._connection.close()
            self._publisher.close()

    def _turn(self) -> None:
        with suppress(TimeoutError):
            self._connection.drain_events(timeout=0.05)
        if time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + HEARTBEAT
            self._publisher.publish([request("heartbeat", to_payload(self._report()))])

    def _register(self) -> None:
        self._publisher.publish([event("register", to_payload(self._report()))])

    def _consumer(self, channel: Any) -> Consumer:
        return Consumer(channel, [searcher_queue(self.id)], callbacks=[self._take], no_ack=True, accept=["json"])

    def _report(self) -> Report:
        self._seq += 1
        held = tuple(self._held.values())
        free = self._capacity - sum(each.size_mb for each in held)
        return Report(searcher_id=self.id, seq=self._seq, free_space=free, capacity=self._capacity, holdings=held)

    def _take(self, _body: Any, message: Any) -> None:
        payload = json.loads(message.body)
        match payload.pop("type"):
            case "load":
                self._obey("loaded", read(Load, payload))
            case "unload":
                self._obey("unloaded", read(Unload, payload))
            case "register_again":
                self._register()
            case "search":
                self._answer(message, payload)

    def _obey(self, told: str, order: Load | Unload) -> None:
        self.orders.append(order)
        if not self.obeys:
            return
        if isinstance(order, Load):
            size, generation = order.size_mb, order.generation
            self._held[order.domain] = Holding(
                domain=order.domain, sha256=order.sha256, generation=generation, size_mb=size
            )
        else:
            del self._held[order.domain]
        outcome = Outcome(report=self._report(), domain=order.domain, sha256=order.sha256)
        self._publisher.publish([event(told, to_payload(outcome))])

    def _answer(self, message: Any, payload: dict[str, Any]) -> None:
        properties = message.properties
        answer = Message(
            json.dumps({"by": self.id, **payload}).encode(), correlation_id=properties.get("correlation_id")
        )
        message.channel.basic_publish(answer, exchange="", routing_key=properties["reply_to"])


@contextmanager
def actors(settings: Settings, *capacities: int) -> Iterator[list[Actor]]:
    """Run searchers with so many MB each, for the block."""
    cast = [Actor(settings, capacity) for capacity in capacities]
    try:
        yield cast
    finally:
        for actor in cast:
            actor.die()
