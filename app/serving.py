"""Requests of a queue are answered beside the tasks of its worker: which queue, and who makes what answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from app.amqp.delivery import Delivery


class Service(Protocol):
    """What answers the messages of one queue, in a worker's main process.

    All but `close` are called in the worker's event loop, and must be quick: what takes time, a service does in
    threads of its own. Its messages are acknowledged before they come here, for nobody waits for a late answer.
    """

    def take(self, delivery: Delivery) -> None:
        """Answer a message, now or later. What it raises is logged, and the message is gone."""

    def connected(self) -> None:
        """Called whenever the worker consumes from the queue: at its start, and after the broker was away."""

    def close(self) -> None:
        """Called when the worker stops: say farewell, finish what is under way."""


#: Queue, as it stands behind `--queues`, to who makes its service from the worker's consumer. Filled by tasks/.
SERVICES: dict[str, Callable[[Any], Service]] = {}


def serves(queue: str) -> Callable[[Callable[[Any], Service]], Callable[[Any], Service]]:
    """Return the decorator that registers who makes the service of a queue."""

    def register(make: Callable[[Any], Service]) -> Callable[[Any], Service]:
        SERVICES[queue] = make
        return make

    return register
