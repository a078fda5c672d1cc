"""The worker's consumer: plain messages become tasks, an archive that is away is let alone."""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from celery.utils.log import get_logger
from celery.worker import state
from redis.exceptions import RedisError

from app.broker.amqp_internals import forget_decoded_body
from app.broker.delivery import Delivery
from app.broker.worker import consumer
from app.coverart.coordination import CircuitBreaker
from app.coverart.jobs import arguments, parse
from app.envelopes import Call, call_of_envelope, to_task_message
from app.state.client import get_quick_redis
from app.topology.declare import declare_all
from config.routes import Route, art_routes
from config.settings import get_settings

logger = get_logger(__name__)

#: Seconds between two looks whether the archive may be asked: what comes in between goes through a delay queue.
_LOOK_EVERY = 0.2


class Consumer(consumer.Consumer):
    """The consumer of app/retry, for messages of producers that never heard of Celery, too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = get_settings()
        self._art: dict[str, tuple[str, Route]] = {
            route.queue: (exchange, route) for exchange in settings.art_exchanges for route in art_routes(exchange)
        }
        self._blind = False
        if self._art:
            self._outage = CircuitBreaker(get_quick_redis(settings.redis), settings.art_outage_pause)
            self.timer.call_repeatedly(_LOOK_EVERY, self._mind_outage)

    def declare(self, channel: Any) -> None:
        """Declare every queue and exchange of the application; raises TopologyDiffers, which ends the worker."""
        declare_all(channel, get_settings())

    def to_task(self, message: Any) -> None:
        """Turn a plain kombu message into Celery's, in place, and keep it as it came.

        Raises Undecodable, UnknownType or InvalidJob.
        """
        message.original = Delivery.of(message, message.delivery_info["queue"])
        envelope = to_task_message(message.original, self._call(message.original))
        message.headers = envelope.headers
        message.body = envelope.body
        message.content_type, message.content_encoding = "application/json", "utf-8"
        message.properties.setdefault("correlation_id", envelope.id)
        forget_decoded_body(message)

    def _call(self, delivery: Delivery) -> Call:
        """Return what a plain message asks for; an art message has no type, its queue says what it is."""
        if delivery.queue not in self._art:
            return call_of_envelope(delivery)
        exchange, route = self._art[delivery.queue]
        return Call(route.task, {**arguments(parse(route.type, delivery.body)), "archive": exchange})

    def _mind_outage(self) -> None:
        """Stop consuming art messages while the archive is let alone, and begin again afterwards."""
        # A worker that is told to stop has let go of its queues, and must not take them again.
        if self.task_consumer is None or self.blueprint.state != bootsteps.RUN or is_stopping():
            return
        try:
            let_alone = self._outage.seconds_open() > 0
        except RedisError as error:
            # Said once: the next look is soon, and no job runs without Redis.
            if not self._blind:
                logger.warning("Cannot tell whether the archive is let alone: %s", error)
            self._blind = True
            return
        self._blind = False
        for queue in self._art:
            if queue in self.app.amqp.queues.consume_from:
                self._let_alone(queue, let_alone)

    def _let_alone(self, queue: str, let_alone: bool) -> None:
        consuming = bool(self.task_consumer.consuming_from(queue))
        if let_alone and consuming:
            logger.warning("The archive does not answer: %s is let alone", queue)
            self.note_queues()
            self.task_consumer.cancel_by_queue(queue)
        elif not let_alone and not consuming:
            self.add_task_queue(queue)


def is_stopping() -> bool:
    """Return whether this worker was told to stop: Celery keeps an exit status for that, which may be 0."""
    return any(told is not None and told is not False for told in (state.should_stop, state.should_terminate))
