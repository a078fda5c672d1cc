"""The worker's consumer: plain messages become tasks, requests are answered, an archive that is away is let alone."""

from __future__ import annotations

import time
from typing import Any

from amqp.exceptions import PreconditionFailed
from celery import bootsteps
from celery.concurrency.solo import TaskPool as SoloPool
from celery.utils.log import get_logger
from celery.worker import state
from redis.exceptions import RedisError

from app.broker.amqp_internals import forget_decoded_body
from app.broker.delivery import Delivery
from app.broker.errors import TopologyDiffers
from app.broker.worker import consumer
from app.coverart.calls import arguments
from app.coverart.messages import parse
from app.coverart.outage import Outage
from app.envelopes import Call, call_of_envelope, to_task_message
from app.roles import given_names, hold_lease, require_role, searcher_id
from app.serving import Services
from app.state.client import get_quick_redis
from app.topology.declare import declare_all
from app.topology.queues import SERVED_AHEAD
from config.routes import ORCHESTRATOR, Route, art_routes
from config.settings import get_settings

logger = get_logger(__name__)

#: Seconds between two looks whether the archive may be asked: what comes in between goes through a delay queue.
_LOOK_EVERY = 0.2

#: Seconds that another orchestrator is waited for to go: at the start, and after the connection broke.
_LEASE_PATIENCE, _LEASE_PATIENCE_AGAIN = 5.0, consumer.BROKER_PATIENCE


class Consumer(consumer.Consumer):
    """The consumer of app/retry, for messages of producers that never heard of Celery, too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = get_settings()
        queues = self.app.amqp.queues.consume_from
        require_role(queues, solo=isinstance(self.pool, SoloPool))
        self.searcher_id = searcher_id(queues)
        self._orchestrates = ORCHESTRATOR in queues
        self._services = Services(self, given_names(queues))
        if self._services:
            # No request waits for the acknowledgement of another one.
            self.prefetch_multiplier: int = SERVED_AHEAD
            self.initial_prefetch_count = self.max_prefetch_count
        self._art: dict[str, tuple[str, Route]] = {
            route.queue: (exchange, route) for exchange in settings.art_exchanges for route in art_routes(exchange)
        }
        self._blind = False
        if self._art:
            self._outage = Outage(get_quick_redis(settings.redis), settings.art_outage_pause)
            self.timer.call_repeatedly(_LOOK_EVERY, self._mind_outage)

    def declare(self, channel: Any) -> None:
        """Declare all that stands on our broker; raises TopologyDiffers, which ends the worker, and says what to do."""
        try:
            declare_all(channel, get_settings())
        except PreconditionFailed as error:
            raise TopologyDiffers(f"{error.reply_text}; perennial topology check says what to do") from error

    def connect(self) -> Any:
        """Connect as app/retry does; raises AlreadyRunning, which ends the worker, for a second orchestrator."""
        connection = super().connect()
        if self._orchestrates:
            patience = _LEASE_PATIENCE_AGAIN if self.restart_count else _LEASE_PATIENCE
            try:
                hold_lease(connection, patience=patience, meanwhile=state.maybe_shutdown)
            except BaseException:
                connection.collect(socket_timeout=1)
                raise
        return connection

    def create_task_handler(self, *args: Any, **kwargs: Any) -> consumer.Handler:
        """Give the messages of served queues to their service, and all others to Celery."""
        tasks = super().create_task_handler(*args, **kwargs)

        def on_message(message: Any) -> None:
            queue = self._queue_name(message)
            if queue in self._services:
                self._services.take(message, queue)
            else:
                tasks(message)

        return on_message if self._services else tasks

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Forget what nobody will ever read; of tasks, as app/retry does."""
        queue = self._queue_name(message)
        if queue in self._services:
            logger.warning("A message of %s cannot be decompressed: %s", queue, exc)
            message.ack_log_error(logger, self.connection_errors)
        else:
            super().on_decode_error(message, exc)

    def on_ready(self) -> None:
        """Tell the services that their queues are consumed from."""
        super().on_ready()
        self._services.connected()

    def linger(self, seconds: float) -> None:
        """Take messages for so many seconds more, then let go of the served queues; for a service that is closed.

        What is sent to a searcher's queue afterwards is returned to its sender.
        """
        until = time.monotonic() + seconds
        if self.task_consumer is None:
            return
        try:
            while self.connection and (left := until - time.monotonic()) > 0:
                self._drain(left)
            self.note_queues()
            for queue in self._services:
                self.task_consumer.cancel_by_queue(queue)
        except (*self.connection_errors, *self.channel_errors) as error:
            logger.warning("The broker went first: %r", error)

    def _drain(self, seconds: float) -> None:
        try:
            self.connection.drain_events(timeout=seconds)
        except TimeoutError:
            return

    def stop(self) -> None:
        """Close the services while there still is a connection, and stop."""
        self._services.close()
        super().stop()

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
            let_alone = self._outage.remaining() > 0
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
