"""Declares what every process relies on: work queues, dead set, events."""

from __future__ import annotations

from typing import Any

from config.settings import Settings
from config.topology import all_queues, dead_queue, events_exchange, work_queues


def declare_base(channel: Any, settings: Settings) -> None:
    """Declare the work queues, the dead set and the events exchange: what a client needs.

    The dead set comes first: a dead-letter target that is not there loses messages silently.
    """
    events_exchange(channel).declare()
    for queue in [dead_queue(), *work_queues(settings)]:
        queue(channel).declare()


def declare_all(channel: Any, settings: Settings) -> int:
    """Declare everything, the usual delay queues included; return the number of queues."""
    declare_base(channel, settings)
    queues = all_queues(settings)
    for queue in queues:
        queue(channel).declare()
    return len(queues)
