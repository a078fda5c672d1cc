"""Celery's consumer, with nothing thrown away: what cannot become a task spends the same retry budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery.utils.log import get_logger
from celery.worker.consumer import Consumer as CeleryConsumer
from celery.worker.state import maybe_shutdown

from ..amqp_internals import queues_by_consumer_tag
from ..connection import wait_for_exclusive_queue
from ..delivery import delivery_of
from ..errors import ApplicationError, InvalidMessage, Undecodable, UnknownType, WorkerMisconfigured
from ..policies.base import Dead, Decision, Drop
from ..policies.registry import Policies
from ..policies.waiting import DEAD_LETTER
from ..publishing import get_publisher
from .carry_out import Disposition
from .failures import FailureHandler, failure_of
from .task import Task

logger = get_logger(__name__)

#: Seconds that events of tasks wait for company. Flower shows them that much later.
_FLUSH_EVERY = 0.25

#: Seconds in which a broker notices by heartbeats, 60 s apart by its default, that a connection is gone.
BROKER_PATIENCE = 180.0

Handler = Callable[[Any], None]


class Consumer(CeleryConsumer):  # type: ignore[misc]
    """Celery's consumer without its delay machinery, which loses no message whatever is in it."""

    class Blueprint(CeleryConsumer.Blueprint):  # type: ignore[misc]
        """Celery declares 28 `celery_delayed_*` queues wherever it sees a quorum queue; ours has no use for them."""

        default_steps = tuple(
            step for step in CeleryConsumer.Blueprint.default_steps if "delayed_delivery" not in str(step).lower()
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        wiring = self.app.retries
        require_retrying_tasks(self.app.tasks)
        require_dead_lettered(self.app.amqp.queues.consume_from, wiring.policies)
        publisher = get_publisher(_broker_of(self.app), timeout=wiring.publish_timeout)
        self._failures = FailureHandler(
            policies=wiring.policies, publisher=publisher, timer=self.timer, worker=self.hostname
        )
        self.app.failures = self._failures
        self._queue_of_tag: dict[str, str] = {}
        self._flush_pending = False
        self._run: Callable[[Any], None] = self.on_task_request
        self.on_task_request: Callable[[Any], None] = self._run_if_it_may

    def connect(self) -> Any:
        """Connect, and declare at once what the worker relies on: the broker may be a new one.

        No step of the blueprint could: Celery starts those that do not require each other in an order by chance, and
        the one that declares the work queues may come first. The usual delay queues are declared well before they are
        needed, since RabbitMQ 3.10 can lose a quorum queue that it made a moment before it was killed.
        """
        connection = super().connect()
        try:
            self._await_mailbox(connection)
            with connection.channel() as channel:
                self.declare(channel)
        except BaseException:
            connection.collect(socket_timeout=1)
            raise
        return connection

    def _await_mailbox(self, connection: Any) -> None:
        """Wait after a break until the broker has given up the old connection; Celery would end for its mailbox."""
        if self.restart_count:
            name = self.app.control.mailbox.get_queue(self.hostname).name
            wait_for_exclusive_queue(
                connection,
                lambda channel: channel.queue_declare(name, passive=True),
                patience=BROKER_PATIENCE,
                meanwhile=maybe_shutdown,
            )

    def declare(self, channel: Any) -> None:
        """Declare what the policies need, dead sets first: a dead-letter target that is not there loses silently."""
        for queue in self._failures.policies.queues():
            queue(channel).declare()

    def to_task(self, message: Any) -> None:
        """Turn a message without a `task` header into Celery's, in place; here, there is none that could be."""
        raise Undecodable(f"no task's message: {bytes(message.body or b'')[:60]!r}")

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Handler:
        """Wrap Celery's handler: note the queue, translate plain messages, let no message break the loop."""
        inner: Handler = super().create_task_handler(*args, **kwargs)
        self._queue_of_tag.clear()

        def on_message(message: Any) -> None:
            message.delivery_info["queue"] = self._queue_name(message)
            try:
                self._prepare(message)
                inner(message)
            except ApplicationError as error:
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
        """Spend the budget of a body that cannot be decoded; Celery acknowledges it, and it is gone.

        One that cannot be decompressed comes here straight from kombu.
        """
        message.delivery_info["queue"] = self._queue_name(message)
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

    def _run_if_it_may(self, request: Any) -> None:
        if request.may_run():
            self._run(request)

    def _prepare(self, message: Any) -> None:
        """Make it a task's message that no field of can stop the worker; Celery's own counter is told the attempts."""
        if "task" not in (message.headers or {}):
            self.to_task(message)
        require_valid_headers(message.headers)
        delivery, task = delivery_of(message), message.headers["task"]
        message.headers["retries"] = self._failures.policies.policy_for(delivery.queue, task).attempts(delivery)

    def _fail(self, message: Any, error: ApplicationError) -> None:
        failure = failure_of(error, task=(message.headers or {}).get("task"))
        self._failures.failed(delivery_of(message), failure, self._settling(message, error))

    def _settling(self, message: Any, error: ApplicationError) -> Callable[[Decision, Disposition], None]:
        def done(decision: Decision, settlement: Disposition) -> None:
            if settlement is Disposition.REJECT:
                message.reject_log_error(logger, self.connection_errors)
            else:
                message.ack_log_error(logger, self.connection_errors)
            self._announce(message.headers or {}, error, ended=isinstance(decision, Dead | Drop))

        return done

    def _announce(self, headers: Mapping[str, Any], error: ApplicationError, *, ended: bool) -> None:
        """Tell Flower, and whoever waits for the result, of a message that was meant to be a task and cannot be one."""
        ident = headers.get("id")
        if not isinstance(ident, str):
            return
        try:
            if self.event_dispatcher:
                self.event_dispatcher.send("task-failed" if ended else "task-retried", uuid=ident, exception=str(error))
            if ended:
                self.app.backend.mark_as_failure(ident, error, store_result=not headers.get("ignore_result"))
        except Exception as why:  # noqa: BLE001 - The message is settled; bookkeeping must not undo that.
            logger.warning("Nobody learns that %s[%s] failed: %r", headers.get("task"), ident, why)

    def note_queues(self) -> None:
        """Note which queue each consumer is of; called before one is cancelled, since its last messages come later."""
        self._queue_of_tag |= queues_by_consumer_tag(self.task_consumer)

    def _queue_name(self, message: Any) -> str:
        tag = message.delivery_info["consumer_tag"]
        if tag not in self._queue_of_tag:
            self.note_queues()
        return self._queue_of_tag.get(tag, message.delivery_info.get("routing_key") or "")


def require_retrying_tasks(tasks: Mapping[str, Any]) -> None:
    """Raise NotWired for a task whose message Celery would acknowledge whatever becomes of it."""
    for name, task in tasks.items():
        if not isinstance(task, Task):
            raise WorkerMisconfigured(
                f"task {name}: its base {type(task).__mro__[1].__name__} is not {Task.__module__}.Task, so its "
                "failures would be lost; derive it from the application's own `app.Task`, after install()"
            )
        if not task.acks_late:
            raise WorkerMisconfigured(
                f"task {name}: acks_late is off, so that it would be acknowledged before its work is done"
            )


def require_dead_lettered(queues: Mapping[str, Any], policies: Policies) -> None:
    """Raise NotWired for a queue whose policy rejects, and from which the broker would drop what is rejected."""
    for name, queue in queues.items():
        policy = policies.policy_for(name)
        target = policy.work_arguments(name).get(DEAD_LETTER) if policy.rejects else None
        if target and (queue.queue_arguments or {}).get(DEAD_LETTER) != target:
            raise WorkerMisconfigured(
                f"queue {name}: its policy {policy.name} rejects, and without {DEAD_LETTER} {target!r} the broker "
                "drops what is rejected; declare it as the policy's work_queue() has it"
            )


def require_valid_headers(headers: Mapping[str, Any]) -> None:
    """Raise InvalidMessage for headers of a task that would stop a worker, or wait in its memory."""
    limits = headers.get("timelimit") or ()
    if not isinstance(limits, list | tuple) or not all(
        each is None or isinstance(each, int | float) for each in limits
    ):
        raise InvalidMessage(f"timelimit {limits!r:.100}: expected two numbers of seconds")
    if headers.get("eta"):
        raise InvalidMessage("eta: a worker holds no message until its time; every delay lives in the broker")


def _broker_of(app: Any) -> str:
    """Return the broker's URL, or several with semicolons between them."""
    url = app.conf.broker_write_url or app.conf.broker_url
    return url if isinstance(url, str) else ";".join(url)
