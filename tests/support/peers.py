"""Searchers and an orchestrator with scripted replies, over a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from kombu import Connection, Queue

from app.broker.delivery import Delivery
from app.cluster.protocol import PackRoute, Routes, SearcherStatus, to_json
from app.topology.queues import events_exchange, queries_exchange, request_queue
from config.settings import get_settings
from tests.support.answering import ByHand, consumed

#: Returns the body of the reply to a message; None for no reply.
Script = Callable[[dict[str, Any]], bytes | None]


class Peer:
    """Replies to the requests of one queue by a script that may be changed at any time, and records them."""

    def __init__(self, url: str, queue: Queue, script: Script) -> None:
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self._running = ExitStack()
        connection = self._running.enter_context(Connection(url))
        for entity in (events_exchange, queries_exchange, queue):
            entity(connection.default_channel).declare()
        self._client = ByHand(url)
        self._running.callback(self._client.close)
        self._running.enter_context(consumed(url, self._answer, queue=queue.name, exists=True))

    def close(self) -> None:
        """Stop consuming; an auto-delete queue is deleted."""
        self._running.close()

    def _answer(self, delivery: Delivery) -> None:
        request = json.loads(delivery.body)
        self.requests.append(request)
        if (reply := self.script(request)) is not None:
            self._client.reply(delivery, reply)


@contextmanager
def peer(url: str, queue: Queue, script: Script) -> Iterator[Peer]:
    """Yield a peer for the block."""
    with closing(Peer(url, queue, script)) as found:
        yield found


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


def silence(_request: dict[str, Any]) -> None:
    """Send no reply."""
