"""Celery's request in the worker's main process: every bad end of a run becomes a decision of the queue's policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback
from celery import signals
from celery.exceptions import Ignore, Terminated, TimeLimitExceeded
from celery.utils.log import get_logger
from celery.worker import state

from ..delivery import Delivery, is_held, original_delivery
from ..errors import ApplicationError
from ..headers import is_suspect, unacknowledged
from ..policies.base import Dead, Decision, Drop, Postponed
from .carry_out import Disposition
from .celery_internals import RevocableRequest
from .failures import Done, FailureHandler, Original, failure_of
from .task import AttemptFailed, AttemptPostponed

if TYPE_CHECKING:
    from billiard.einfo import ExceptionInfo

logger = get_logger(__name__)


class Request(RevocableRequest):
    """A task's message. Celery itself would acknowledge a failed one, or requeue it forever."""

    #: Whether the end of this run was handled: Celery may report one end several times.
    _ended = False
    #: Runs the message alone in a process, if it shares its process with others.
    run_alone: Callable[[Request], None] | None = None
    #: Monotonic seconds since which it waits for a process, if it shares one with others; infinite if it must run.
    held_since = 0.0

    def may_run(self) -> bool:
        """Return whether the policy lets the task run; if not, the message is dead-lettered."""
        text = "WorkerLostError: earlier deliveries of this message crashed their workers"
        self._ended = True
        if self._failures.may_run(self._original(partial(self._finish, text, "")), self.type):
            self._ended = False
            return True
        state.task_ready(self)
        return False

    @property
    def is_suspect(self) -> bool:
        """Whether earlier deliveries of the message may have crashed their workers."""
        return is_suspect(self._delivery)

    def set_aside(self) -> None:
        """Publish the message again for a moment later, instead of a run."""
        self._ended = True
        state.task_ready(self)
        done = partial(self._finish, "set aside: it has to run alone", "")
        self._failures.set_aside(self._original(done), self.type, deliveries=unacknowledged(self._delivery))

    def acknowledge(self) -> None:
        """Acknowledge the message. After a success, report the outcome of a replay: Celery skips `on_success` here."""
        super().acknowledge()
        if not self._ended:
            self._ended = True
            self._failures.report_outcome(self._delivery, "lived")

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Handle a time limit. Celery reports a hard one after it called on_failure for the killed child."""
        if soft:
            super().on_timeout(soft, timeout)
        elif not state.should_terminate:
            self._fail(TimeLimitExceeded(timeout))

    def on_failure(self, exc_info: ExceptionInfo, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """Handle any other bad end: an exception in the child process, or the child's death."""
        error = exc_info.exception
        error = error.exc if isinstance(error, ExceptionWithTraceback) else error
        decided = isinstance(error, AttemptFailed | AttemptPostponed)
        # A termination means one message: others that share its process run again.
        for_another = isinstance(error, Terminated) and self.run_alone is not None and not self.was_revoked
        if not decided and not for_another and isinstance(error, Ignore | Terminated):
            super().on_failure(exc_info, send_failed_event, return_ok)
        elif state.should_terminate or (self.was_cancelled and not decided):
            # The worker is stopping: the message stays unacknowledged and goes back to its queue.
            state.task_ready(self)
        elif self.run_alone and not self._ended and (not decided or is_out_of_memory(error)):
            self._run_again(self.run_alone, error)
        else:
            self._fail(error, str(exc_info.traceback or ""))

    def on_revoked(self, reason: str) -> None:
        """Report the outcome of a replay that never ran or did not finish. Celery then acknowledges, as documented."""
        if not self._ended:
            self._ended = True
            self._failures.report_outcome(self._delivery, "revoked", reason)

    def _run_again(self, run_alone: Callable[[Request], None], error: BaseException) -> None:
        """Run the message alone: any of the messages that shared its process may be to blame for the failure."""
        self.run_alone = self.time_start = self.worker_pid = None
        if not is_held(self.message):
            # The broker delivers it again.
            state.task_ready(self)
            return
        logger.warning("%s[%s] runs again, alone: it shared its process: %s", self.name, self.id, error)
        # It does not run: if the connection is lost before it does, Celery must forget it, as this worker does.
        state.active_requests.discard(self)
        # Its first run is not at work any more.
        self.request_dict["delivery_info"]["redelivered"] = True
        run_alone(self)

    @property
    def _failures(self) -> FailureHandler:
        failures: FailureHandler = self.app.failures
        return failures

    @property
    def _delivery(self) -> Delivery:
        return original_delivery(self.message)

    def _original(self, done: Done) -> Original:
        return Original(self._delivery, partial(is_held, self.message), done)

    def _postponed_at_time_limit(self) -> AttemptPostponed | None:
        try:
            postpone = self.task.on_time_limit()
        except Exception as error:  # noqa: BLE001 - The message must be answered, whatever a hook does.
            logger.warning("Hook on_time_limit of %s[%s] failed: %r", self.name, self.id, error)
            return None
        return AttemptPostponed(postpone) if postpone else None

    def _fail(self, error: BaseException, trace: str = "") -> None:
        if self._ended:
            return
        self._ended = True
        state.task_ready(self)
        if isinstance(error, TimeLimitExceeded):
            error = self._postponed_at_time_limit() or error
        if isinstance(error, AttemptPostponed):
            postpone = error.postpone

            def finish(decision: Decision, disposition: Disposition) -> None:
                if postpone.mark and isinstance(decision, Postponed):
                    self._call_hook("on_postponed", self.id, self.args, self.kwargs)
                self._finish(f"postponed: {postpone.why}", "", decision, disposition)

            self._failures.postpone(self._original(finish), self.type, postpone)
            return
        failure = error.failure if isinstance(error, AttemptFailed) else failure_of(error, trace=trace, task=self.type)
        self._failures.fail(self._original(partial(self._finish, str(failure), failure.traceback)), failure)

    def _finish(self, error: str, trace: str, decision: Decision, disposition: Disposition) -> None:
        """Acknowledge or reject the message, then announce what became of it."""
        if disposition is Disposition.REJECT:
            # Celery's own `reject` would announce a rejected task, and this one will be retried.
            self.on_reject(logger, self.connection_errors, False)
            self.acknowledged = True
        else:
            self.acknowledge()
        if isinstance(decision, Dead):
            self._call_hook("on_dead_letter", self.args, self.kwargs)
        if not isinstance(decision, Dead | Drop):
            self.send_event("task-retried", exception=error, traceback=trace)
            return
        self.send_event("task-failed", exception=error, traceback=trace)
        exception = ApplicationError(error)
        try:
            self.task.backend.mark_as_failure(
                self.id, exception, traceback=trace or None, request=self.context, store_result=self.store_errors
            )
        except Exception as lost:  # noqa: BLE001 - Each backend has its own; the message is settled already.
            logger.warning("%s[%s]: its failure is not in the result backend: %s", self.name, self.id, lost)
        signals.task_failure.send(
            sender=self.task,
            task_id=self.id,
            exception=exception,
            args=self.args,
            kwargs=self.kwargs,
            traceback=None,
            einfo=None,
        )

    def _call_hook(self, name: str, *arguments: Any) -> None:
        hook = getattr(self.task, name, None)
        if hook is not None:
            self._failures.hooks.call(f"Hook {name} of {self.name}[{self.id}]", partial(hook, *arguments))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a task failed because its process had no memory left."""
    return isinstance(error, AttemptFailed) and error.failure.reason == "out-of-memory"
