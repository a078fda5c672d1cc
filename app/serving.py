"""Requests of a queue are answered beside the tasks of its worker: which queue, and who makes what answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from app.broker.delivery import Delivery

logger = logging.getLogger(__name__)


class Service(Protocol):
    """What answers the messages of one queue, in a worker's main process.

    All but `close` are called in the worker's event loop, and must be quick: what takes time, a service does in
    threads of its own. Its messages are acknowledged before they come here, or need not be (app/topology/queues.py),
    for nobody waits for a late answer.
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


class Services:
    """The services of one worker, by the name of the queue that each answers."""

    def __init__(self, consumer: Any, queues: Mapping[str, str]) -> None:
        """Make the service of each queue that has one; `queues` is name -> name as it stands behind `--queues`."""
        self._services = {name: SERVICES[given](consumer) for name, given in queues.items() if given in SERVICES}
        self._closed = False

    def __contains__(self, queue: object) -> bool:
        return queue in self._services

    def __bool__(self) -> bool:
        return bool(self._services)

    def __iter__(self) -> Iterator[str]:
        return iter(self._services)

    def take(self, message: Any, queue: str) -> None:
        """Acknowledge a kombu message and give it to its service; after `close`, neither is done.

        On a queue without acknowledgements kombu sends none, and the message is gone with the queue.
        """
        if self._closed:
            return
        message.ack()
        try:
            self._services[queue].take(Delivery.of(message, queue))
        except Exception as error:  # noqa: BLE001 - What one message is must not stop the worker.
            logger.warning("A message of %s is not taken: %r: %.100r", queue, error, message.body)

    def connected(self) -> None:
        """Tell the services that their queues are consumed from."""
        for queue, service in self._services.items():
            try:
                service.connected()
            except Exception:
                logger.exception("The service of %s did not begin", queue)

    def close(self) -> None:
        """Close the services, once; meanwhile they may still take messages."""
        if self._closed:
            return
        for queue, service in self._services.items():
            try:
                service.close()
            except Exception:
                logger.exception("The service of %s did not end in order", queue)
        self._closed = True
