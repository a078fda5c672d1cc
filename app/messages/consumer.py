"""The worker's consumer: envelopes become tasks, and messages wait while a service that they need is unavailable."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from app.broker.amqp_internals import forget_decoded_body
from app.broker.declaring import RefusedDeclaration
from app.broker.delivery import Delivery
from app.broker.worker.consumer import Consumer
from app.coverart.jobs import event_of, parse
from app.messages.circuit_breakers import breakers_by_queue
from app.messages.envelopes import TaskCall, call_of_envelope, to_task_message
from app.redis_state.client import get_quick_redis
from app.timers.timers import MAX_TICK_PAUSE, TickWatch
from app.topology.declare import declare_all
from config.routes import TICK, Route, art_routes
from config.settings import get_settings

logger = get_logger(__name__)

#: Seconds between two checks of the circuit breakers. Messages consumed in between are postponed by their task.
_CHECK_EVERY = 0.2
#: Seconds before the next check when Redis did not answer.
_CHECK_AGAIN = 5.0

#: Seconds between two checks that ticks run.
_CHECK_TICKS_EVERY = 10.0


class EnvelopeConsumer(Consumer):
    """Consumes messages of producers that do not use Celery, too: envelopes and lines of the cover art archive."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = get_settings()
        self._art: dict[str, tuple[str, Route]] = {
            route.queue: (exchange, route) for exchange in settings.art_exchanges for route in art_routes(exchange)
        }
        redis = get_quick_redis(settings.redis)
        if TICK in self.app.amqp.queues.consume_from:
            self._ticks = TickWatch(redis)
            self._ticks_overdue = False
            self.timer.call_repeatedly(_CHECK_TICKS_EVERY, self._check_ticks)
        #: The circuit breakers of the services that messages need, by their queues.
        self._breakers = breakers_by_queue(settings, redis)
        self._redis_failed, self._next_check = False, 0.0
        self.timer.call_repeatedly(_CHECK_EVERY, self._check_circuit_breakers)

    def declare(self, connection: Any) -> list[RefusedDeclaration]:
        """Declare every queue and exchange of the application; return the queues that the broker refuses."""
        return declare_all(connection, get_settings()) if get_settings().declare_topology else []

    def to_task(self, message: Any) -> None:
        """Turn a kombu message into a task's message, in place; its Delivery keeps it as it came.

        Raises Undecodable, UnknownType or InvalidJob.
        """
        delivery = message.original = Delivery.of(message, message.delivery_info["queue"])
        if delivery.queue in self._art:
            # An art message has no type: its queue is its type.
            exchange, route = self._art[delivery.queue]
            given = {**asdict(parse(route.type, delivery.body)), "archive": exchange}
            event = event_of(delivery.headers)
            call = TaskCall(route.task, given if event is None else {**given, "event": event})
        else:
            call = call_of_envelope(delivery)
        task_message = to_task_message(delivery, call)
        message.headers = task_message.headers
        message.body = task_message.body
        message.content_type, message.content_encoding = "application/json", "utf-8"
        message.properties.setdefault("correlation_id", task_message.id)
        forget_decoded_body(message)

    def _check_ticks(self) -> None:
        """Log once that no tick ran for a minute, and once that ticks run again."""
        try:
            overdue = self._ticks.is_overdue()
        except RedisError:
            # Each task that needs Redis reports it.
            return
        if overdue and not self._ticks_overdue:
            logger.warning(
                "No tick ran for %d s, so no site is packed: is beat running? See perennial doctor", MAX_TICK_PAUSE
            )
        elif self._ticks_overdue and not overdue:
            logger.warning("Ticks run again")
        self._ticks_overdue = overdue

    def _check_circuit_breakers(self) -> None:
        """Stop consuming queues whose messages need an unavailable service, and start again when it may be tried."""
        if not self.may_consume or time.monotonic() < self._next_check:
            return
        consumed = self.app.amqp.queues.consume_from.keys() - self.refused.names
        breakers = {queue: self._breakers[queue] for queue in self._breakers if queue in consumed}
        unique = {breaker.name: breaker for each in breakers.values() for breaker in each}
        try:
            is_open = {name for name, breaker in unique.items() if breaker.seconds_open() > 0}
        except RedisError as error:
            # Logged once. An unreachable Redis may block this event loop for a second at each check.
            if not self._redis_failed:
                logger.warning("Redis does not answer; circuit breakers are not checked: %s", error)
            self._redis_failed, self._next_check = True, time.monotonic() + _CHECK_AGAIN
            return
        self._redis_failed = False
        unavailable = {queue: [each.service for each in breakers[queue] if each.name in is_open] for queue in breakers}
        consuming = {queue for queue in unavailable if self.task_consumer.consuming_from(queue)}
        paused = [queue for queue in unavailable if unavailable[queue] and queue in consuming]
        resumed = [queue for queue in unavailable if not unavailable[queue] and queue not in consuming]
        if paused:
            names = " and ".join(dict.fromkeys(name for queue in paused for name in unavailable[queue]))
            logger.warning("The %s does not answer: circuit breaker open, stop consuming %s", names, ", ".join(paused))
        if resumed:
            logger.info("Circuit breaker closed or tried again, consume %s", ", ".join(resumed))
        for queue in paused:
            self.task_consumer.cancel_by_queue(queue)
        for queue in resumed:
            self.consume_from(queue)
