"""Celery's consumer, which loses no message: one that cannot become a task spends the same retry budget."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from amqp.exceptions import AMQPError, ChannelError, RecoverableConnectionError
from celery import bootsteps, signals
from celery.platforms import EX_FAILURE
from celery.utils.log import get_logger
from celery.worker import state
from celery.worker.consumer import Consumer as CeleryConsumer
from kombu import Queue
from kombu.exceptions import ContentDisallowed, DecodeError

from ..connection import wait_for_exclusive_queue
from ..declaring import RefusedDeclaration, declare_exchanges, declare_queues
from ..delivery import Delivery, is_held, original_delivery
from ..errors import (
    AlreadyRunning,
    ApplicationError,
    InvalidMessage,
    PublishFailed,
    TooDeep,
    Undecodable,
    UnknownType,
    WorkerMisconfigured,
)
from ..headers import EXPIRES, REPLAY, is_uncounted, unacknowledged
from ..nesting import may_be_deep, require_shallow
from ..outcomes import outcomes_exchange
from ..policies.base import Dead, Decision, Drop, RetryPolicies
from ..policies.delays import DEAD_LETTER_EXCHANGE
from ..publishing import get_publisher
from .celery_internals import STEPS_WITHOUT_DELAYED_DELIVERY, TaskPool, guard_start
from .dispatcher import Dispatcher, prefetch_counts
from .failures import Disposition, FailureHandler, UnackedMessage, failure_of, return_time
from .install import broker_url
from .isolation import Isolation
from .refused_queues import RefusedQueues
from .task import Task

logger = get_logger(__name__)

#: Seconds for which task events are gathered before they are published together. Flower shows them that much later.
_EVENT_DELAY = 0.25

#: Seconds after which a broker has certainly given up a broken connection: three heartbeats of its default, 60 s.
BROKER_PATIENCE = 180.0

#: Seconds between two checks that the queues exist to which the broker sends rejected messages.
_CHECK_RETRY_QUEUES = 60.0

#: Errors after which Celery connects again, and the broker delivers again what was not acknowledged.
CONNECTION_LOST = (ConnectionError, AMQPError)

OnTask = Callable[[Any], None]


class Consumer(CeleryConsumer):  # type: ignore[misc]
    """Celery's consumer with the application's retry policies, and without Celery's delayed delivery."""

    class Blueprint(CeleryConsumer.Blueprint):  # type: ignore[misc]
        """The steps of Celery's consumer without the one for delayed delivery."""

        default_steps = STEPS_WITHOUT_DELAYED_DELIVERY

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        retries = self.app.retries
        require_retrying_tasks(self.app.tasks)
        require_dead_lettered(self.app.amqp.queues.consume_from, retries.policies)
        publisher = get_publisher(broker_url(self.app), timeout=retries.publish_timeout)
        self._failures = FailureHandler(
            policies=retries.policies,
            publisher=publisher,
            timer=self.timer,
            worker=self.hostname,
            on_outcome=retries.on_outcome,
        )
        self.app.failures = self._failures
        self.refused = RefusedQueues(self._call_in_loop, self._consume_again)
        self.app.amqp.refused = self.refused.names
        self._flush_pending = False
        self._loop_thread: int | None = None
        guard_start(self.controller, self._cannot_run)
        self._start_now: OnTask = self.on_task_request
        #: Where a pool of processes has an event loop.
        self._dispatcher: Dispatcher | None = None
        self._isolation = Isolation(self._start, self.timer.call_after)
        self.on_task_request: OnTask = self._offer
        policies = (retries.policies.policy_for(name) for name in self.app.amqp.queues.consume_from)
        self._retry_queues = [queue for policy in policies if policy.rejects for queue in policy.queues()]
        if self._retry_queues:
            self.timer.call_repeatedly(_CHECK_RETRY_QUEUES, self._check_retry_queues)

    def connect(self) -> Any:
        """Connect, and declare at once what the worker relies on: the broker may be a new one.

        A step of the blueprint cannot do this. Celery starts independent steps in no fixed order, and the one that
        declares the work queues may come first. The usual delay queues are declared long before their first use.
        RabbitMQ 3.10 can lose a quorum queue that it created just before it was killed.
        """
        self._isolation.connection_lost()
        if self._dispatcher:
            self._dispatcher.connection_lost()
        connection = super().connect()
        try:
            self._wait_for_mailbox(connection)
            self.refused.note(connection, self.declare(connection))
        except BaseException:
            connection.collect(socket_timeout=1)
            raise
        return connection

    def _wait_for_mailbox(self, connection: Any) -> None:
        """Wait until the broker has given up a broken connection of this worker, or of its killed predecessor.

        Until then Celery would end with a bare RESOURCE_LOCKED. Raises AlreadyRunning if another worker has the name.
        """
        mailbox = self.app.control.mailbox.get_queue(self.hostname).name
        if not wait_for_exclusive_queue(
            connection,
            lambda channel: channel.queue_declare(mailbox, passive=True),
            patience=BROKER_PATIENCE,
            meanwhile=state.maybe_shutdown,
        ):
            raise AlreadyRunning(
                f"another worker named {self.hostname} is connected to {connection.as_uri()}: stop it, or start this "
                "one with another --hostname"
            )

    def declare(self, connection: Any) -> list[RefusedDeclaration]:
        """Declare the queues of the policies and of the worker; return those that the broker refuses.

        Dead sets are first: the broker loses what it dead-letters to a missing queue.
        """
        declare_exchanges(connection, [outcomes_exchange])
        return declare_queues(
            connection, [*self._failures.policies.queues(), *self.app.amqp.queues.consume_from.values()]
        )

    @property
    def may_consume(self) -> bool:
        """Whether the worker consumes: a stopping one must not begin again."""
        # Celery keeps its exit status in these two, which may be 0.
        stopping = any(
            status is not None and status is not False for status in (state.should_stop, state.should_terminate)
        )
        return self.task_consumer is not None and self.blueprint.state == bootsteps.RUN and not stopping

    def _call_in_loop(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function after some seconds in the loop that reads from the connection: no greenlet may read it, too.

        Celery's timers are greenlets where the pool has no event loop.
        """
        self.timer.call_after(seconds, function if self.hub else partial(self.call_soon, function))

    def _consume_again(self, queue: Queue) -> None:
        """Consume from a queue of this worker that was refused before and is declared now."""
        if self.may_consume and queue.name in self.app.amqp.queues.consume_from:
            self.consume_from(queue.name)

    def consume_from(self, queue: str) -> None:
        """Consume from a queue of this worker, which may be refused: its node died, or it has other arguments by now.

        A refusal closes the channel of all other queues. RecoverableConnectionError lets the worker connect again.
        """
        try:
            self.add_task_queue(queue)
        except ChannelError as error:
            raise RecoverableConnectionError(f"channel closed: {error}") from error

    def to_task(self, message: Any) -> None:
        """Turn a message without a `task` header into a task's message, in place: one of Celery's protocol 1.

        Its body is a table that names the task. Celery reads the rest of it. Raises Undecodable for any other message.
        """
        delivery = message.original = original_delivery(message)
        try:
            named = {name: message.payload[name] for name in ("task", "id")}
        except (DecodeError, ContentDisallowed, LookupError, TypeError) as error:
            raise Undecodable(f"not a task's message: {delivery.body[:60]!r}") from error
        # A replay does not expire: its header is left out, and here the body has the time.
        lasting = {EXPIRES: None} if REPLAY in delivery.headers else {}
        message.headers = {**delivery.headers, **named, **lasting}

    def create_task_handler(self, *args: Any, **kwargs: Any) -> OnTask:
        """Wrap Celery's handler: note the queue, translate plain messages, and survive malformed ones."""
        run_task: OnTask = super().create_task_handler(*args, **kwargs)
        self.task_consumer.on_refused = self.refused.note_not_consumed
        if self.hub is not None:
            self._loop_thread = self._failures.loop_thread = threading.get_ident()
            # `Hub.call_soon` runs its callback in the next turn, and that one may wait for a second first.
            self.hub.on_tick.add(self._failures.flush)
            if isinstance(self.pool, TaskPool):
                self._prefetch_for_groups()

        def on_message(message: Any) -> None:
            message.delivery_info["queue"] = message.delivery_info["consumer_tag"]
            try:
                if message.delivery_info.get("redelivered") and self._count(message):
                    return
                if "task" not in (message.headers or {}):
                    self.to_task(message)
                require_shallow_body(message)
                # A policy decides on the message as it came, whatever is added to it below.
                message.original = delivery = original_delivery(message)
                policy = self._failures.policies.policy_for(delivery.queue)
                # `self.request.retries` of a task, which Celery counts by its own retries only.
                message.headers["retries"] = policy.attempts(delivery)
                # The queue whose policy retries the failures of this run; empty for the last run.
                message.headers["retried_by"] = delivery.queue if policy.has_retries(delivery) else ""
                run_task(message)
            except ApplicationError as error:
                self._fail(message, error)
            except CONNECTION_LOST:
                raise
            except (OSError, MemoryError) as error:
                self._cannot_run(error)
            except Exception as error:  # noqa: BLE001 - One malformed message must not stop the worker.
                self._fail(message, InvalidMessage(f"cannot be handled: {error!r}"))

        return on_message

    def _prefetch_for_groups(self) -> None:
        """Hand messages to the pool in groups, and consume enough of their queues for that."""
        self._dispatcher = self._dispatcher or Dispatcher(self.pool, self.controller, self._cannot_run)
        self.task_consumer.usual_prefetch = self.initial_prefetch_count
        self.task_consumer.prefetch = prefetch_counts(self.app, self.pool.num_processes)

    def call_soon_ack(self, p: Callable[..., None], *args: Any, **kwargs: Any) -> Any:
        """Answer a message at once. A pool of threads calls this from another thread, which must not use the channel.

        Celery answers in the next turn of the event loop, which may wait for a second first. What failed is answered at
        the end of a turn: the worker would get its next message that much later.
        """
        if threading.get_ident() != self._loop_thread:
            return super().call_soon_ack(p, *args, **kwargs)
        p(*args, **kwargs)
        return p

    def stop(self) -> None:
        """Stop consuming. What has ended by now is answered at once, and what ends later, then."""
        self._failures.loop_thread = None
        self._failures.flush()
        super().stop()

    def shutdown(self) -> None:
        """Close the connection, after hooks that wait were called once more."""
        self._failures.hooks.close()
        super().shutdown()

    def on_send_event_buffered(self) -> None:
        """Publish task events a few times a second, instead of at every turn of the event loop."""

        def flush() -> None:
            self._flush_pending = False
            if self.event_dispatcher:
                self.event_dispatcher.flush()

        if not self._flush_pending:
            self._flush_pending = True
            self.timer.call_after(_EVENT_DELAY, flush)

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Spend the budget of a body that cannot be decoded or decompressed. Celery would acknowledge and lose it."""
        message.delivery_info["queue"] = message.delivery_info["consumer_tag"]
        self._fail(message, Undecodable(str(exc)))

    def on_unknown_task(self, _body: Any, message: Any, _exc: Exception) -> None:
        """Spend the budget of a message for a task that this release does not have."""
        self._fail(message, UnknownType(f"task {message.headers.get('task')!r} is not registered"))

    def on_invalid_task(self, _body: Any, message: Any, exc: Exception) -> None:
        """Spend the budget of a task's message whose contents Celery refuses."""
        self._fail(message, Undecodable(str(exc)))

    def _count(self, message: Any) -> bool:
        """Publish a redelivered message again with its count of deliveries, if its queue does not count them."""
        delivery = Delivery.of(message, message.delivery_info["queue"])
        if not is_uncounted(delivery):
            return False

        def done(_decision: Decision, _disposition: Disposition) -> None:
            message.ack_log_error(logger, self.connection_errors)

        unacked = UnackedMessage(delivery, partial(is_held, message), done)
        self._failures.set_aside(unacked, deliveries=unacknowledged(delivery) + 1)
        return True

    def _offer(self, request: Any) -> None:
        """Run a message now or later, unless it is at its delivery limit."""
        if not request.end_at_delivery_limit():
            self._isolation.offer(request)

    def _start(self, request: Any) -> None:
        try:
            if self._dispatcher and request.task.shares_process and not request.is_suspect:
                self._dispatcher.offer(request)
            else:
                self._start_now(request)
        except CONNECTION_LOST:
            raise
        except Exception as error:  # noqa: BLE001 - Whatever it is, the message is not to blame.
            self._cannot_run(error)

    def _cannot_run(self, error: Exception) -> None:
        """Stop the worker, which can start no task: the message stays unacknowledged and its budget unspent."""
        if not state.should_stop:
            logger.critical("Stopping, since no task can be started here; messages go back to their queues: %r", error)
            state.should_stop = EX_FAILURE

    def _check_retry_queues(self) -> None:
        """Declare a missing queue of a policy that rejects. A quorum queue holds back what it cannot pass on."""
        try:
            for queue in self._retry_queues:
                if self._failures.publisher.declare_if_missing(queue):
                    logger.warning("Queue %s was missing and is declared again", queue.name)
        except PublishFailed as error:
            logger.warning("Retry queues not checked, again in %g s: %s", _CHECK_RETRY_QUEUES, error)

    def _fail(self, message: Any, error: ApplicationError) -> None:
        headers = message.headers or {}
        if isinstance(error, UnknownType):
            about = {"name": headers.get("task"), "id": headers.get("id")}
            signals.task_unknown.send(sender=self, message=message, exc=error, **about)
        else:
            signals.task_rejected.send(sender=self, message=message, exc=error)

        def done(decision: Decision, disposition: Disposition) -> None:
            if disposition is Disposition.REJECT:
                message.reject_log_error(logger, self.connection_errors)
            else:
                message.ack_log_error(logger, self.connection_errors)
            self._announce(headers, error, decision)

        failure = failure_of(error, task=headers.get("task"))
        self._failures.fail(UnackedMessage(original_delivery(message), partial(is_held, message), done), failure)

    def _announce(self, headers: Mapping[str, Any], error: ApplicationError, decision: Decision) -> None:
        """Announce the failure of a message that names a task but cannot be run, in events and as the task's result."""
        task_id = headers.get("id")
        if not isinstance(task_id, str):
            return
        ended = isinstance(decision, Dead | Drop)
        about = {"name": headers.get("task"), "args": headers.get("argsrepr"), "kwargs": headers.get("kwargsrepr")}
        try:
            if self.event_dispatcher:
                kind = "task-failed" if ended else "task-retried"
                self.event_dispatcher.send(kind, uuid=task_id, exception=str(error), **about, **return_time(decision))
            if ended:
                self.app.backend.mark_as_failure(task_id, error, store_result=not headers.get("ignore_result"))
        except Exception as cause:  # noqa: BLE001 - The message is acknowledged; an announcement must not undo that.
            context = {"task_id": task_id}
            logger.warning("Failure of task %s not announced: %r", headers.get("task"), cause, extra=context)


def require_retrying_tasks(tasks: Mapping[str, Any]) -> None:
    """Raise WorkerMisconfigured for a task whose message Celery would acknowledge although it failed."""
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


def require_dead_lettered(queues: Mapping[str, Any], policies: RetryPolicies) -> None:
    """Raise WorkerMisconfigured for a queue whose policy rejects messages that the broker would then drop."""
    for name, queue in queues.items():
        policy = policies.policy_for(name)
        target = policy.work_arguments().get(DEAD_LETTER_EXCHANGE) if policy.rejects else None
        if target and (queue.queue_arguments or {}).get(DEAD_LETTER_EXCHANGE) != target:
            raise WorkerMisconfigured(
                f"queue {name}: its policy {policy.name} rejects, and without {DEAD_LETTER_EXCHANGE} {target!r} the "
                "broker drops what is rejected; declare it as the policy's work_queue() has it"
            )


def require_shallow_body(message: Any) -> None:
    """Raise TooDeep for a body that is nested so deeply that no pool process could get it."""
    if may_be_deep(message.body or b""):
        try:
            require_shallow(message.payload)
        except (DecodeError, ContentDisallowed) as error:
            # Celery reports what else cannot be decoded, and decodes the body only once.
            if isinstance(error.__context__, RecursionError):
                raise TooDeep(str(error)) from error
