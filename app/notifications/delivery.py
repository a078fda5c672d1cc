"""Deliver the events of a receiver's queue in order, one at a time, until it is empty or the receiver fails."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from amqp.exceptions import ResourceLocked
from celery.utils.log import get_task_logger
from redis import Redis

from app.broker.connection import CONNECTION_ERRORS, connection_to
from app.broker.delivery import Delivery
from app.broker.errors import ApplicationError, Undecodable
from app.broker.publishing import Publisher
from app.broker.worker.failures import carry_out_one, failure_of
from app.notifications.quiet import QuietPeriods, QuietState
from app.notifications.receivers import QueuedEvent, Receiver
from app.redis_state.circuit_breaker import CircuitBreaker
from app.redis_state.client import PREFIX
from app.topology.retry_policies import notification_policy
from config.settings import Settings

logger = get_task_logger(__name__)

#: While Redis has this key, events may wait in the queues of receivers, and ticks publish `notify`.
WAKE: Final = f"{PREFIX}notify:wake"
#: Seconds that an event waits for a receiver that fails. Afterwards it is a dead letter.
EVENT_EXPIRES: Final = 3 * 86_400.0
#: Seconds between two attempts at a receiver that fails, and for which its failures are remembered.
_LONGEST_PAUSE: Final = 300.0
_MEMORY: Final = 600.0
#: Seconds after which a run leaves the rest to the next one; shorter than its time limit by more than one request.
_LONGEST_RUN: Final = 45.0
#: Seconds between two heartbeats of the connection. The broker closes it after two that are missing, so that the events
#: of a machine that vanished are delivered by another one. Each step of a run takes less.
_HEARTBEAT: Final = 60.0


@functools.cache
def receiver_breaker(redis: Redis, receiver: str, settings: Settings) -> CircuitBreaker:
    """Return the circuit breaker of a receiver: while it is open, nothing is sent. Ticks read it: it is made once."""
    first = min(settings.retry_timeout_ms / 1_000, _LONGEST_PAUSE)
    name = f"receiver:{receiver}"
    return CircuitBreaker(
        redis, name, f"receiver {receiver}", first_pause=first, longest_pause=_LONGEST_PAUSE, memory=_MEMORY
    )


class EventDelivery:
    """Delivers the events of one receiver.

    One process at a time does: it holds an exclusive queue, which the broker deletes with its connection. It holds one
    event at most, which the broker then puts back to the head: a killed process costs neither an event nor the order.
    An event that was sent and not acknowledged is skipped, if Redis has its id. Otherwise it is sent again.
    """

    def __init__(self, receiver: Receiver, settings: Settings, redis: Redis, publisher: Publisher) -> None:
        self.receiver = receiver
        self.settings = settings
        self.redis = redis
        self.publisher = publisher
        self.policy = notification_policy(settings)
        self.breaker = receiver_breaker(redis, receiver.name, settings)
        self.quiet = QuietPeriods(redis, receiver.name)

    def run(self) -> None:
        """Deliver events until the queue is empty or the receiver fails.

        Nothing is done while another process delivers, and while the receiver rests after a failure.
        """
        if self.breaker.seconds_open():
            return
        try:
            while self._deliver_all():
                # An event may arrive while this process holds the lease and has seen the empty queue.
                with self._channel() as channel:
                    if not channel.queue_declare(self.receiver.name, passive=True).message_count:
                        break
        except (*CONNECTION_ERRORS, ApplicationError) as error:
            pause, _ = self.breaker.fail(reason=str(error), retry_after=getattr(error, "retry_after", None))
            logger.warning("%s: events wait, next attempt in %.1f s: %s", self.receiver.name, pause, error)
            self.redis.set(WAKE, 1)

    def _deliver_all(self) -> bool:
        """Deliver what waits; return false where another process does, or other messages have their turn first."""
        until, failed = time.monotonic() + _LONGEST_RUN, None
        with self._channel() as channel:
            try:
                channel.queue_declare(f"{self.receiver.name}.lease", exclusive=True)
            except ResourceLocked:
                return False
            for message in iter(lambda: channel.basic_get(self.receiver.name), None):
                delivery = Delivery.of(channel.message_to_python(message), self.receiver.name)
                failed = self._handle(delivery, failed)
                channel.basic_ack(message.delivery_tag)
                if time.monotonic() > until:
                    self.redis.set(WAKE, 1)
                    return False
        return True

    def _handle(self, delivery: Delivery, failed: ApplicationError | None) -> ApplicationError | None:
        """Send an event, or dead-letter it. Return the error of a receiver that failed before or now.

        After a failure, only events that are too old to wait any longer, or of a time far ahead, are handled; the error
        is raised for others.
        """
        try:
            event = QueuedEvent.of(delivery)
        except Undecodable as undecodable:
            self._dead_letter(delivery, undecodable)
            return failed
        error = failed
        if error is None:
            try:
                self._send(event)
            except ApplicationError as failure:
                error = failure
            else:
                self.breaker.succeed()
                return None
        if not error.permanent and abs(time.time() - event.at) < EVENT_EXPIRES:
            raise error
        self._dead_letter(delivery, error)
        return None if error.permanent else error

    def _send(self, event: QueuedEvent) -> None:
        """Send an event unless it is quiet or was sent, and note it."""
        last = f"{PREFIX}notify:{self.receiver.name}:last"
        if self.redis.get(last) == event.id:
            return
        now = time.time()
        is_loud = event.type in self.receiver.never_quiet
        state = QuietState() if is_loud else self.quiet.state(event.type, event.subject)
        if state.is_quiet(now):
            logger.info("%s of %s suppressed for %s", event.type, event.subject, self.receiver.name)
        else:
            self.receiver.send(event, state.suppressed)
            logger.info("%s of %s sent to %s", event.type, event.subject, self.receiver.name)
        self.redis.set(last, event.id)
        if not is_loud:
            self.quiet.note(event.type, event.subject, state.after(now))

    def _dead_letter(self, delivery: Delivery, error: ApplicationError) -> None:
        """Publish an event to the dead set, confirmed; raises the error of a failed attempt."""
        decision = self.policy.end(delivery, failure_of(error, task="site.notify"), attempts=1)
        logger.error("Dead-lettered an event of %s: %s", self.receiver.name, error)
        carry_out_one(decision, delivery, publisher=self.publisher)

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        """Yield a channel. Its connection is closed at the end, and gives back what was not acknowledged."""
        with connection_to(self.settings.broker, heartbeat=_HEARTBEAT) as connection:
            yield connection.channel()
