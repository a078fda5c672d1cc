"""Searchers and an orchestrator with scripted replies, over a real broker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kombu import Connection, Consumer, Producer, Queue

from app.cluster.protocol import PackRoute, ProblemReply, Routes, SearcherStatus, to_json
from app.topology.queues import events_exchange, queries_exchange, request_queue
from config.settings import get_settings

#: Returns the body of the reply to a message; None for no reply.
Script = Callable[[dict[str, Any]], bytes | None]


class Peer:
    """Consumes from one queue and replies by a script that may be changed at any time; records its requests."""

    def __init__(self, url: str, queue: Queue, script: Script) -> None:
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self._url = url
        self._queue = queue
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to consume; the queue is declared when this returns."""
        self._thread.start()
        assert self._ready.wait(30)

    def stop(self) -> None:
        """Stop consuming; an auto-delete queue is deleted."""
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        with Connection(self._url) as connection, connection.channel() as channel:
            producer = Producer(channel)
            for exchange in (events_exchange, queries_exchange):
                exchange(channel).declare()

            def answer(body: Any, message: Any) -> None:
                message.ack()
                request = json.loads(body) if isinstance(body, str | bytes) else body
                self.requests.append(request)
                reply = self.script(request)
                if reply is not None:
                    properties = message.properties
                    producer.publish(
                        reply,
                        exchange="",
                        routing_key=properties["reply_to"],
                        correlation_id=properties["correlation_id"],
                        content_type="application/json",
                        content_encoding="utf-8",
                    )

            with Consumer(channel, [self._queue], callbacks=[answer], accept=["json"]):
                self._ready.set()
                while not self._stop.is_set():
                    with suppress(TimeoutError):
                        connection.drain_events(timeout=0.02)


@contextmanager
def peer(url: str, queue: Queue, script: Script) -> Iterator[Peer]:
    """Yield a peer for the block."""
    found = Peer(url, queue, script)
    found.start()
    try:
        yield found
    finally:
        found.stop()


def orchestrator(url: str, routes: Callable[[], Routes | None]) -> Any:
    """Return the context of an orchestrator that replies with these routes, or not at all for None."""

    def answer(_request: dict[str, Any]) -> bytes | None:
        current = routes()
        return to_json(current) if current is not None else None

    return peer(url, request_queue(get_settings()), answer)


def routes(*routes: PackRoute, ready: bool = True) -> Routes:
    """Return routes with the searchers that they name."""
    named = sorted({each for route in routes for each in route.searchers})
    nodes = tuple(SearcherStatus(searcher_id=each, free_space=10, capacity=100, age=0.1) for each in named)
    return Routes(orchestrator="test", ready=ready, routes=routes, searchers=nodes)


def route(domain: str, *searchers: str, newest: int = 0, **changed: Any) -> PackRoute:
    """Return the route of a domain."""
    fields = {"sha256": "0" * 64, "generation": 1, "pages": 3, "built_at": "2026-11-21T10:04:00+00:00", "size_mb": 1}
    return PackRoute(domain=domain, searchers=searchers, newest=newest or len(searchers), **{**fields, **changed})


def refused(reason: str) -> Script:
    """Return the script of a searcher that always replies with this reason code."""
    return lambda _request: to_json(ProblemReply(reason=reason, detail=f"told: {reason}"))


def silence(_request: dict[str, Any]) -> None:
    """Send no reply."""
