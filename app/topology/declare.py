"""All that stands on our broker: the queues and exchanges of config, and what their retry policies wait and end in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amqp.exceptions import PreconditionFailed
from kombu import Queue

from app.broker.errors import TopologyDiffers
from app.broker.policies.waiting import delay_queue
from app.topology.policies import policies
from app.topology.queues import events_exchange, requests_exchange, task_queues
from config.settings import Settings


def all_queues(settings: Settings) -> list[Queue]:
    """Return every queue that `perennial topology apply` declares: work queues first, dead sets last."""
    ours = policies(settings)
    work, ends = task_queues(settings), ours.dead_sets()
    there = {queue.name for queue in work} | set(ends)
    waiting = [queue for queue in ours.queues() if queue.name not in there]
    waiting += coalescing_queues(settings)
    return [*work, *waiting, *(policy.dead for policy in ends.values() if policy.dead is not None)]


def base_queues(settings: Settings) -> list[Queue]:
    """Return what a client needs: the dead sets and the work queues.

    The dead sets come first: a dead-letter target that is not there loses messages silently.
    """
    ends = (policy.dead for policy in policies(settings).dead_sets().values())
    return [*(dead for dead in ends if dead is not None), *task_queues(settings)]


def declare_base(channel: Any, settings: Settings) -> None:
    """Declare the work queues, the dead sets and the exchanges of events and requests: what a client needs."""
    events_exchange(channel).declare()
    requests_exchange(channel).declare()
    _declare(channel, base_queues(settings))


def declare_all(channel: Any, settings: Settings) -> int:
    """Declare everything, the usual delay queues included; return the number of queues."""
    declare_base(channel, settings)
    queues, there = all_queues(settings), {queue.name for queue in base_queues(settings)}
    _declare(channel, (queue for queue in queues if queue.name not in there))
    return len(queues)


def declare_for_process(channel: Any, settings: Settings) -> None:
    """Declare everything; raises TopologyDiffers, which ends the process, where a queue has other arguments."""
    try:
        declare_all(channel, settings)
    except PreconditionFailed as error:
        raise TopologyDiffers(f"{error.reply_text}; perennial topology check says what to do") from error


def _declare(channel: Any, queues: Iterable[Queue]) -> None:
    for queue in queues:
        queue(channel).declare()


def coalescing_queues(settings: Settings) -> list[Queue]:
    """Return the queues in which equal messages of each archive are gathered."""
    delay_ms = round(settings.art_window * 1_000)
    if not delay_ms:
        return []
    return [
        delay_queue(exchange, delay_ms, back_to=exchange, queue_type=settings.queue_type)
        for exchange in settings.art_exchanges
    ]
