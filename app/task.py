"""What happens when a task ends badly, in one place: the policy decides, the worker's parent process acts."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback
from celery import Task as CeleryTask
from celery import signals
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded, Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Retry as CeleryRetry
from celery.utils.log import get_logger
from celery.worker import state
from celery.worker.request import Request as CeleryRequest

from app.amqp.delivery import Delivery
from app.amqp.publish import Publisher
from app.errors import InvalidMessage, PerennialError, Postpone, PublishFailed
from app.retry.carry_out import carry_out, on_ladder
from app.retry.choose import policy_for
from app.retry.dead_set import death_headers
from app.retry.policy import MAX_MESSAGE, MAX_TRACEBACK, Dead, Decision, Drop, Failure, Postponed, Retry
from config.settings import Settings

if TYPE_CHECKING:
    from billiard.einfo import ExceptionInfo

logger = get_logger(__name__)

#: Seconds before a decision whose publish failed is tried again; doubled up to the second.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0

#: Characters of headers above which their frame may be longer than the broker's 131072 bytes with what we add.
_MANY_HEADERS = 100_000


class AttemptFailed(Ignore):  # type: ignore[misc]
    """Carries a failure from the pool's child to the parent.

    Celery lets an Ignore through without marking, logging or signalling a failure: an attempt that will be retried
    is none, and only the parent knows whether it will be.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class AttemptPostponed(Ignore):  # type: ignore[misc]
    """Carries a postponement of so many seconds from the pool's child to the parent."""

    def __init__(self, seconds: float, why: str) -> None:
        super().__init__(seconds, why)
        self.seconds = seconds
        self.why = why


class Failures:
    """Acts on failures in the worker's parent process, on a connection of its own.

    Until the replacement is confirmed the original stays unacknowledged; a publish that fails is tried again by a timer
    of the event loop.
    """

    def __init__(self, *, settings: Settings, publisher: Publisher, timer: Any, worker: str) -> None:
        self._settings = settings
        self._publisher = publisher
        self._timer = timer
        self._worker = worker

    def failed(self, delivery: Delivery, failure: Failure, task: object, done: Callable[[Decision], None]) -> None:
        """Let the queue's policy decide, carry it out, then call `done`, which acknowledges."""
        failure = replace(failure, worker=self._worker)
        decision = policy_for(task, delivery.queue, self._settings).decide(delivery, failure)
        _log(decision, delivery, failure, task)
        self._act(decision, delivery, done, _FIRST_PAUSE)

    def postponed(self, delivery: Delivery, seconds: float, done: Callable[[Decision], None]) -> None:
        """Send the message to a delay queue of the ladder, budget unspent, then call `done`."""
        self._act(Postponed(on_ladder(seconds)), delivery, done, _FIRST_PAUSE)

    def _act(self, decision: Decision, delivery: Delivery, done: Callable[[Decision], None], pause: float) -> None:
        try:
            carry_out(decision, delivery, publisher=self._publisher, settings=self._settings)
        except Exception as error:  # noqa: BLE001 - Celery swallows what a hook raises, and the message too.
            logger.warning(
                "Cannot %s a message of %s, again in %g s: %s", _verb(decision), delivery.queue, pause, error
            )
            if not isinstance(error, PublishFailed) or len(repr(delivery.headers)) > _MANY_HEADERS:
                decision, delivery = _bare_burial(delivery, error)
            again = (decision, delivery, done, min(pause * 2, _LONGEST_PAUSE))
            self._timer.call_after(pause, self._act, again)
            return
        done(decision)


def _bare_burial(delivery: Delivery, error: Exception) -> tuple[Decision, Delivery]:
    """Return what is left for a message whose headers cannot be sent again: the dead set, without them."""
    bare = replace(delivery, headers={}, properties={})
    failure = failure_of(InvalidMessage(f"headers that cannot be sent again: {error!r}: {dict(delivery.headers)!r}"))
    return Dead(death_headers(bare, failure, attempts=1)), bare


class Request(CeleryRequest):  # type: ignore[misc]
    """A task's message in the parent. Its ends are routed through `Failures`; Celery's own would ack or loop."""

    _ended = False

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Handle a time limit. A hard one comes after on_failure, which a killed child calls too."""
        if soft:
            super().on_timeout(soft, timeout)
        elif not state.should_terminate:
            self._fail(TimeLimitExceeded(timeout))

    def on_failure(self, exc_info: ExceptionInfo, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """Handle any other bad end: an exception that the child let through, or the child's death."""
        error = exc_info.exception
        error = error.exc if isinstance(error, ExceptionWithTraceback) else error
        ours = isinstance(error, (AttemptFailed, AttemptPostponed))
        if not ours and isinstance(error, (Ignore, Reject, CeleryRetry, Terminated)):
            super().on_failure(exc_info, send_failed_event, return_ok)
        elif state.should_terminate or (self._already_cancelled and not ours):
            # The worker itself is stopping: unacknowledged, the message goes back to its queue.
            state.task_ready(self)
        else:
            self._fail(error, str(exc_info.traceback or ""))

    def _fail(self, error: BaseException, trace: str = "") -> None:
        if self._ended:
            return
        self._ended = True
        state.task_ready(self)
        failures: Failures = self._app.failures
        delivery = delivery_of(self._message)
        if isinstance(error, AttemptPostponed):
            failures.postponed(delivery, error.seconds, lambda decision: self._done(decision, error, ""))
            return
        failure = error.failure if isinstance(error, AttemptFailed) else failure_of(error, trace=trace)
        failures.failed(
            delivery, failure, self._type, lambda decision: self._done(decision, failure, failure.traceback)
        )

    def _done(self, decision: Decision, cause: Failure | BaseException, trace: str) -> None:
        self.acknowledge()
        text = f"{cause.exception}: {cause.message}" if isinstance(cause, Failure) else str(cause)
        if isinstance(decision, (Retry, Postponed, Drop)):
            self.send_event("task-retried", exception=text, traceback=trace)
            return
        self.send_event("task-failed", exception=text, traceback=trace)
        self._announce_death(text)

    def _announce_death(self, text: str) -> None:
        error = PerennialError(text)
        self.task.backend.mark_as_failure(self.id, error, request=self._context, store_result=self.store_errors)
        signals.task_failure.send(
            sender=self.task,
            task_id=self.id,
            exception=error,
            args=self.args,
            kwargs=self.kwargs,
            traceback=None,
            einfo=None,
        )
        try:
            self.task.on_death(self.args, self.kwargs)
        except Exception as error:  # noqa: BLE001 - The message is safe in the dead set; bookkeeping must not undo that.
            logger.warning("After the death of %s[%s]: %r", self.name, self.id, error)


class Task(CeleryTask):  # type: ignore[misc]
    """Base of every task: turns what goes wrong into a value for the parent."""

    abstract = True
    Request = "app.task:Request"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task. Called directly, errors are raised as they are."""
        if self.request.called_directly:
            return super().__call__(*args, **kwargs)
        try:
            return self.run(*args, **kwargs)
        except Postpone as postpone:
            raise AttemptPostponed(postpone.seconds, postpone.why) from None
        except (Ignore, Reject, CeleryRetry):
            raise
        except Exception as error:  # noqa: BLE001 - Every failure spends the same budget.
            raise AttemptFailed(failure_of(error, trace=traceback.format_exc())) from None

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Publish; raises InvalidMessage for a countdown or an eta, which a worker would hold in its memory."""
        if options.get("countdown") or options.get("eta"):
            raise InvalidMessage(f"{self.name}: neither countdown nor eta; every delay lives in the broker")
        return super().apply_async(args, kwargs, **options)

    def on_death(self, args: Any, kwargs: Any) -> None:
        """Hook, called in the parent after a message of this task went to the dead set. Must be quick."""


def failure_of(error: BaseException, *, trace: str = "") -> Failure:
    """Describe an exception with a reason code; a permanent error of ours says so."""
    return Failure(
        reason=_reason(error),
        exception=type(error).__name__,
        message=str(error)[:MAX_MESSAGE],
        traceback=trace[-MAX_TRACEBACK:],
        permanent=isinstance(error, PerennialError) and error.permanent,
        at=time.time(),
    )


def delivery_of(message: Any) -> Delivery:
    """Return the message as it came: kept by the consumer where it was translated, taken from it otherwise."""
    original: Delivery | None = getattr(message, "original", None)
    return original or Delivery.of(message, message.delivery_info["queue"])


def _reason(error: BaseException) -> str:
    match error:
        case PerennialError():
            return error.reason
        case SoftTimeLimitExceeded():
            return "soft-time-limit"
        case TimeLimitExceeded():
            return "time-limit"
        case WorkerLostError() | SystemExit():
            return "worker-lost"
        case MemoryError():
            return "out-of-memory"
        case _:
            return "exception"


def _verb(decision: Decision) -> str:
    return {Retry: "retry", Postponed: "postpone", Dead: "bury", Drop: "drop"}[type(decision)]


def _log(decision: Decision, delivery: Delivery, failure: Failure, task: object) -> None:
    what = f"{task or 'message'} from {delivery.queue}: {failure.exception}: {failure.message}"
    match decision:
        case Retry(delay_ms, headers):
            attempt = headers.get("current-iteration")
            logger.warning("Attempt %s failed, again in %g s: %s", attempt, delay_ms / 1_000, what)
        case Dead():
            logger.error("Dead (%s): %s\n%s", failure.reason, what, failure.traceback)
        case _:
            logger.warning("Dropped: %s", what)
