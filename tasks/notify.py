"""Notifications: `notify` delivers events to a receiver, `watch` publishes those of what is new in the system."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from celery.utils.log import get_task_logger

from app.broker.connection import connected
from app.broker.dead_letters.counting import count_letters
from app.broker.errors import InvalidMessage, Postpone
from app.broker.outgoing import Outgoing
from app.broker.worker.task import Task
from app.messages.envelopes import event_message, site_message
from app.notifications.delivery import WAKE, EventDelivery, receiver_breaker
from app.notifications.events import PublicEvent
from app.notifications.new_findings import NewFindings
from app.notifications.receivers import receivers
from app.redis_state.lease import lease
from app.topology.retry_policies import retry_policies
from tasks.base import context, is_due, task

logger = get_task_logger(__name__)

#: Seconds between two runs of `watch`, of all processes together.
WATCH_EVERY = 60


class NotifyTask(Task):
    """A task that calls a server of the operator's, which may be slow at each step."""

    abstract = True

    def on_time_limit(self) -> Postpone | None:
        """Postpone a run that met its time limit: its event is in its queue again."""
        return Postpone(4.0, "the time limit is over", code="time-limit")


@task("notify", NotifyTask)
def notify(**message: Any) -> None:
    """Deliver the events that wait for the `receiver`, which is the name of its queue."""
    process, name = context(), message.get("receiver")
    found = receivers(process.settings)
    if not isinstance(name, str):
        raise InvalidMessage(f"receiver {name!r}: expected the name of one")
    if name in found:  # Otherwise it was removed from the settings.
        EventDelivery(found[name], process.settings, process.redis, process.publisher).run()


@task("watch", Task, bind=True)
def watch(self: Any) -> None:
    """Look at the dead sets, at sites and at quick checks of the doctor; publish what is new, then note it."""
    # Imported here because every worker imports this module, and few need the search client of the doctor.
    from app.operations.doctor.checks import quick_problems

    process = context()
    with lease(process.redis, "watch"):
        found = NewFindings(process.redis, now=time.time(), occasion=str(self.request.id))
        with connected(process.settings.broker) as connection:
            dead_sets = retry_policies(process.settings).dead_sets()
            depths = {name: count_letters(connection, name) for name in dead_sets}
        events = [
            *found.dead_sets(depths),
            *found.sites(process.frontier.unreachable()),
            *found.checks(quick_problems(process.settings)),
        ]
        publish_events(events)
        found.note()
    # Events of other programs, or of a process that was killed, may wait.
    process.redis.set(WAKE, 1, ex=WATCH_EVERY)


def publish_events(events: Iterable[PublicEvent], *others: Outgoing) -> None:
    """Publish events after other messages, confirmed, and wake the delivery to receivers.

    Without any subscriber they are dropped.
    """
    messages = list(others)
    for event in events:
        payload = event.payload()
        messages.append(event_message(payload.pop("type"), payload))
    if messages:
        process = context()
        process.publisher.publish(messages)
        process.redis.set(WAKE, 1, ex=WATCH_EVERY)


def publish_due_notifications() -> None:
    """Publish `notify` for each receiver after a wake, and `watch` once in a minute of all processes.

    A receiver that rests after a failure is left out, and the wake stays for it.
    """
    process = context()
    names = process.settings.receivers
    if names and process.redis.delete(WAKE):
        ready = [each for each in names if not receiver_breaker(process.redis, each, process.settings).seconds_open()]
        if len(ready) < len(names):
            process.redis.set(WAKE, 1)
        if ready:
            process.publisher.publish([site_message("notify", process.budgets, receiver=name) for name in ready])
    if is_due("watched", WATCH_EVERY):
        process.publisher.publish([site_message("watch", process.budgets)])
