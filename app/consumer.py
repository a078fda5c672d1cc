"""The worker's consumer: plain messages become tasks, and what cannot be one spends the same retry budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery import bootsteps
from celery.utils.log import get_logger
from celery.worker.consumer import Consumer as CeleryConsumer
from celery.worker.consumer.connection import Connection

from app.amqp.declare import declare_all
from app.amqp.delivery import Delivery
from app.amqp.plain import to_envelope
from app.amqp.publish import get_publisher
from app.errors import InvalidMessage, PerennialError, Undecodable, UnknownType
from app.task import Failures, delivery_of, failure_of
from config.settings import get_settings

logger = get_logger(__name__)

#: Seconds that events of tasks wait for company. Flower shows them that much later.
_FLUSH_EVERY = 0.25

Handler = Callable[[Any], None]


class Topology(bootsteps.StartStopStep):  # type: ignore[misc]
    """Declares what the worker relies on, at every connect: the broker may be a new one.

    The usual delay queues are among it, well before they are needed: RabbitMQ 3.10 can lose a quorum queue that it
    made a moment before it was killed.
    """

    requires = (Connection,)

    def start(self, consumer: Any) -> None:
        """Declare on the consumer's own connection, so that a broker that is away is Celery's to wait for."""
        with consumer.connection.channel() as channel:
            declare_all(channel, get_settings())


class Consumer(CeleryConsumer):  # type: ignore[misc]
    """Celery's consumer without its delay machinery, with plain messages, and with nothing thrown away."""

    class Blueprint(CeleryConsumer.Blueprint):  # type: ignore[misc]
        """Celery declares 28 `celery_delayed_*` queues wherever it sees a quorum queue; ours has no use for them."""

        default_steps = (
            *(step for step in CeleryConsumer.Blueprint.default_steps if "delayed_delivery" not in str(step).lower()),
            Topology,
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = get_settings()
        publisher = get_publisher(settings.broker, timeout=settings.publish_timeout)
        self._failures = Failures(settings=settings, publisher=publisher, timer=self.timer, worker=self.hostname)
        self.app.failures = self._failures
        self._queue_of_tag: dict[str, str] = {}
        self._flush_pending = False

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Handler:
        """Wrap Celery's handler: note the queue, translate plain messages, let no message break the loop."""
        inner: Handler = super().create_task_handler(*args, **kwargs)
        self._queue_of_tag.clear()

        def on_message(message: Any) -> None:
            message.delivery_info["queue"] = self._queue_name(message)
            try:
                if "task" not in (message.headers or {}):
                    translate(message)
                require_sound(message.headers)
                inner(message)
            except PerennialError as error:
                self._fail(message, error)
            except Exception as error:  # noqa: BLE001 - One malformed message must not stop the worker.
                self._fail(message, InvalidMessage(f"cannot be handled: {error!r}"))

        return on_message

    def on_send_event_buffered(self) -> None:
        """Publish what happened to tasks a few times a second, instead of at every turn of the event loop."""
        if not self._flush_pending:
            self._flush_pending = True
            self.timer.call_after(_FLUSH_EVERY, self._flush_buffered)

    def _flush_buffered(self) -> None:
        self._flush_pending = False
        self._flush_events()

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Spend the budget of a body that cannot be decoded; Celery acknowledges it, and it is gone."""
        self._fail(message, Undecodable(str(exc)))

    def on_unknown_message(self, body: Any, message: Any) -> None:
        """Spend the budget of a message that is neither Celery's nor plain."""
        self._fail(message, Undecodable(f"neither a task nor a plain message: {body!r:.100}"))

    def on_unknown_task(self, _body: Any, message: Any, _exc: Exception) -> None:
        """Spend the budget of a message for a task that this release does not have."""
        self._fail(message, UnknownType(f"task {message.headers.get('task')!r} is not registered"))

    def on_invalid_task(self, _body: Any, message: Any, exc: Exception) -> None:
        """Spend the budget of a task message whose contents Celery refuses."""
        self._fail(message, Undecodable(str(exc)))

    def _fail(self, message: Any, error: PerennialError) -> None:
        task = (message.headers or {}).get("task")

        def done(_decision: Any) -> None:
            message.ack_log_error(logger, self.connection_errors)

        self._failures.failed(delivery_of(message), failure_of(error), task, done)

    def _queue_name(self, message: Any) -> str:
        tag = message.delivery_info["consumer_tag"]
        if tag not in self._queue_of_tag:
            self._queue_of_tag = {each: queue for queue, each in self.task_consumer._active_tags.items()}
        return self._queue_of_tag.get(tag, message.delivery_info.get("routing_key") or "")


def require_sound(headers: Mapping[str, Any]) -> None:
    """Raise InvalidMessage for headers of a task that would stop a worker, or wait in its memory."""
    limits = headers.get("timelimit") or ()
    if not isinstance(limits, list | tuple) or not all(
        each is None or isinstance(each, int | float) for each in limits
    ):
        raise InvalidMessage(f"timelimit {limits!r:.100}: expected two numbers of seconds")
    if headers.get("eta"):
        raise InvalidMessage("eta: a worker holds no message until its time; every delay lives in the broker")


def translate(message: Any) -> None:
    """Turn a plain kombu message into Celery's, in place, and keep it as it came; raises Undecodable or UnknownType."""
    message.original = Delivery.of(message, message.delivery_info["queue"])
    envelope = to_envelope(message.original)
    message.headers = envelope.headers
    message.body = envelope.body
    message.content_type, message.content_encoding = "application/json", "utf-8"
    message.properties.setdefault("correlation_id", envelope.id)
    message._decoded_cache = None
