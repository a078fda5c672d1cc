"""The worker's consumer: envelopes become tasks, and art messages wait while the archive is unavailable."""

from __future__ import annotations

from typing import Any

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from app.broker.amqp_internals import forget_decoded_body
from app.broker.declaring import Refusal
from app.broker.delivery import Delivery
from app.broker.worker.consumer import Consumer
from app.coverart.coordination import CircuitBreaker
from app.coverart.jobs import arguments, parse
from app.envelopes import TaskCall, call_of_envelope, to_task_message
from app.state.client import get_quick_redis
from app.timers.ticks import MAX_PAUSE, TickWatch
from app.topology.declare import declare_all
from config.routes import TICK, Route, art_routes
from config.settings import get_settings

logger = get_logger(__name__)

#: Seconds between two checks of the circuit breaker. Messages consumed in between are postponed by their task.
_CHECK_EVERY = 0.2

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
        self._redis_failed = False
        if TICK in self.app.amqp.queues.consume_from:
            self._ticks = TickWatch(get_quick_redis(settings.redis))
            self._ticks_overdue = False
            self.timer.call_repeatedly(_CHECK_TICKS_EVERY, self._check_ticks)
        if self._art:
            self._circuit_breaker = CircuitBreaker(get_quick_redis(settings.redis), settings.art_outage_pause)
            self.timer.call_repeatedly(_CHECK_EVERY, self._check_circuit_breaker)

    def declare(self, connection: Any) -> list[Refusal]:
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
            call = TaskCall(route.task, {**arguments(parse(route.type, delivery.body)), "archive": exchange})
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
                "No tick ran for %d s, so no site is packed: is beat running? See perennial doctor", MAX_PAUSE
            )
        elif self._ticks_overdue and not overdue:
            logger.warning("Ticks run again")
        self._ticks_overdue = overdue

    def _check_circuit_breaker(self) -> None:
        """Stop consuming art messages while the circuit breaker is open, and start again when it is closed."""
        if not self.may_consume:
            return
        try:
            is_open = self._circuit_breaker.seconds_open() > 0
        except RedisError as error:
            # Logged once: the next check is soon, and no job runs without Redis.
            if not self._redis_failed:
                logger.warning("Redis does not answer; the circuit breaker of the archive is not checked: %s", error)
            self._redis_failed = True
            return
        self._redis_failed = False
        for queue in self._art:
            if queue not in self.app.amqp.queues.consume_from or queue in self.refused.names:
                continue
            is_consuming = bool(self.task_consumer.consuming_from(queue))
            if is_open and is_consuming:
                logger.warning("Circuit breaker open, the archive does not answer: stop consuming from %s", queue)
                self.note_queues()
                self.task_consumer.cancel_by_queue(queue)
            elif not is_open and not is_consuming:
                self.add_task_queue(queue)
