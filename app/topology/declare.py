"""Declare the whole topology: exchanges, work queues, delay queues and dead sets."""

from __future__ import annotations

from typing import Any

from amqp.exceptions import PreconditionFailed
from kombu import Queue

from app.broker.errors import TopologyDiffers
from app.broker.policies.delays import delay_queue
from app.topology.policies import retry_policies
from app.topology.queues import events_exchange, requests_exchange, task_queues
from config.settings import Settings


def all_queues(settings: Settings) -> list[Queue]:
    """Return every queue that `perennial topology apply` declares, each once: work queues first, dead sets last."""
    work, dead_sets = task_queues(settings), _dead_sets(settings)
    listed = {queue.name for queue in (*work, *dead_sets)}
    delays = [*retry_policies(settings).queues(), *coalescing_queues(settings)]
    delays_by_name = {queue.name: queue for queue in delays if queue.name not in listed}
    return [*work, *delays_by_name.values(), *dead_sets]


def client_queues(settings: Settings) -> list[Queue]:
    """Return the queues that a client needs: the dead sets and the work queues.

    The dead sets are first: RabbitMQ silently drops messages whose dead-letter exchange does not exist.
    """
    return [*_dead_sets(settings), *task_queues(settings)]


def coalescing_queues(settings: Settings) -> list[Queue]:
    """Return the queue of each archive in which a message waits for the coalescing window; empty without a window."""
    delay_ms = round(settings.art_window * 1_000)
    exchanges = settings.art_exchanges if delay_ms else ()
    return [delay_queue(exchange, delay_ms, back_to=exchange, queue_type=settings.queue_type) for exchange in exchanges]


def declare_for_client(channel: Any, settings: Settings) -> None:
    """Declare what a client needs: the client queues, and the exchanges of events and requests."""
    events_exchange(channel).declare()
    requests_exchange(channel).declare()
    for queue in client_queues(settings):
        queue(channel).declare()


def declare_all(channel: Any, settings: Settings) -> None:
    """Declare everything, including the usual delay queues.

    Raises TopologyDiffers if the broker has a queue or an exchange with other arguments.
    """
    declared = {queue.name for queue in client_queues(settings)}
    try:
        declare_for_client(channel, settings)
        for queue in all_queues(settings):
            if queue.name not in declared:
                queue(channel).declare()
    except PreconditionFailed as error:
        raise TopologyDiffers(f"{error.reply_text}; `perennial topology check` names the remedy") from error


def _dead_sets(settings: Settings) -> list[Queue]:
    dead_sets = (policy.dead for policy in retry_policies(settings).dead_sets().values())
    return [queue for queue in dead_sets if queue is not None]
