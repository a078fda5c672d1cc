"""Declare the whole topology: exchanges, work queues, delay queues and dead sets."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from kombu import Queue

from app.broker.connection import connected
from app.broker.declaring import RefusedDeclaration, declare_exchanges, declare_queues
from app.broker.outcomes import outcomes_exchange
from app.broker.policies.delays import delay_queue
from app.topology.queues import events_exchange, notification_queues, queries_exchange, requests_exchange, task_queues
from app.topology.retry_policies import retry_policies
from config.routes import REQUESTS, TICK
from config.settings import Settings

logger = logging.getLogger(__name__)

#: Queues whose messages are worthless after seconds: declared again where their arguments differ, without a migration.
DISPOSABLE = (TICK, REQUESTS)


def all_queues(settings: Settings) -> list[Queue]:
    """Return every queue that `perennial topology apply` declares, each once: those of clients, then delay queues."""
    of_clients = client_queues(settings)
    names = {queue.name for queue in of_clients}
    others = [*retry_policies(settings).queues(), *coalescing_queues(settings), *notification_queues(settings)]
    return [*of_clients, *{queue.name: queue for queue in others if queue.name not in names}.values()]


def client_queues(settings: Settings) -> list[Queue]:
    """Return the queues that a client needs: the dead sets and the work queues.

    The dead sets are first: RabbitMQ silently drops messages whose dead-letter exchange does not exist.
    """
    dead_sets = [policy.dead for policy in retry_policies(settings).dead_sets().values() if policy.dead is not None]
    return [*dead_sets, *task_queues(settings)]


def coalescing_queues(settings: Settings) -> list[Queue]:
    """Return the queue of each archive in which a message waits for the coalescing window; empty without a window."""
    delay_ms = round(settings.art_window * 1_000)
    exchanges = settings.art_exchanges if delay_ms else ()
    return [delay_queue(exchange, delay_ms, back_to=exchange, queue_type=settings.queue_type) for exchange in exchanges]


def prepare_client(settings: Settings) -> None:
    """Declare on a connection of its own what a client needs; raises BrokerUnreachable.

    Without DECLARE_TOPOLOGY nothing is declared. A refused queue is a warning: the client's own message may be for
    another one, and is confirmed or an error.
    """
    if not settings.declare_topology:
        return
    with connected(settings.broker) as connection:
        for refusal in _declare(connection, client_queues(settings)):
            logger.warning("Queue %s refused: %s", refusal.queue.name, refusal)


def declare_all(connection: Any, settings: Settings) -> list[RefusedDeclaration]:
    """Declare everything, including the usual delay queues; return the queues that the broker refuses.

    Refused are queues on a node that is down, and those with other arguments. Of the latter, the disposable ones are
    deleted and declared again.
    """
    refusals = _declare(connection, all_queues(settings))
    if any(refusal.differs for refusal in refusals):
        logger.error("Queues differ from the code and are not served; `perennial topology check` names the remedy")
    return refusals


def _declare(connection: Any, queues: Iterable[Queue]) -> list[RefusedDeclaration]:
    declare_exchanges(connection, (events_exchange, requests_exchange, queries_exchange, outcomes_exchange))
    return declare_queues(connection, queues, disposable=DISPOSABLE)
