"""Celery's request in the worker's main process: every bad end of a run becomes a decision of the queue's policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from billiard.exceptions import WorkerLostError
from celery import signals, states
from celery.exceptions import Ignore, Terminated, TimeLimitExceeded
from celery.utils.log import get_logger
from celery.worker import state

from ..delivery import Delivery, is_held, original_delivery
from ..errors import ApplicationError, InvalidMessage
from ..headers import REQUEUED, is_suspect, unacknowledged
from ..policies.base import Dead, Decision, Drop, Postponed
from .celery_internals import RevocableRequest
from .failures import Disposition, FailureHandler, OnDone, UnackedMessage, failure_of, return_time
from .task import AttemptFailed, AttemptPostponed, AttemptRetried

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The bad end of a run: `state` is what Celery has recorded in the process that ran it, None for nothing.

    `error` is the exception of the run, where the main process has it.
    """

    state: str | None
    text: str
    traceback: str = ""
    error: BaseException | None = None


class Request(RevocableRequest):
    """A task's message. Celery itself would acknowledge a failed one, or requeue it forever."""

    #: Whether the end of this run was handled: Celery may report one end several times.
    _ended = False
    #: Runs the message alone in a process, if it shares its process with others.
    run_alone: Callable[[Request], None] | None = None
    #: Monotonic seconds since which it waits for a process, if it shares one with others; infinite if it must run.
    waiting_since = 0.0

    def __init__(self, message: Any, **options: Any) -> None:
        """Read the message. To a task that requeued it, it is `redelivered`, though it is a new one to the broker.

        Raises InvalidMessage as `_require_valid_headers` does.
        """
        super().__init__(message, **options)
        # In Celery's older form of a message, its body has what its headers lack.
        _require_valid_headers(self.request_dict)
        if REQUEUED in self.request_dict:
            self.request_dict["delivery_info"]["redelivered"] = True

    def end_at_delivery_limit(self) -> bool:
        """End the message if its deliveries crashed as many workers as its policy allows; return whether it was ended.

        Then it is dead-lettered, and must not run.
        """
        error = WorkerLostError("earlier deliveries of this message crashed their workers")
        end = RunEnd(None, f"WorkerLostError: {error}", "", error)
        # Its acknowledgement must not pass for a success.
        self._ended = True
        self._ended = self._failures.end_at_delivery_limit(self._unacked(partial(self._finish, end)), self.type)
        if self._ended:
            state.task_ready(self)
        return self._ended

    @property
    def is_suspect(self) -> bool:
        """Whether earlier deliveries of the message may have crashed their workers."""
        return is_suspect(self._delivery)

    def set_aside(self) -> None:
        """Publish the message again for a moment later, instead of a run."""
        self._ended = True
        state.task_ready(self)
        text = "%s[%s] is set aside: it has to run alone, or no process became free"
        logger.info(text, self.name, self.id, extra=self._about)
        done = partial(self._finish, RunEnd(None, "set aside: it has to run alone"))
        self._failures.set_aside(self._unacked(done), deliveries=unacknowledged(self._delivery))

    def send_event(self, type: str, **fields: Any) -> None:
        """Send an event with the task's name and arguments: a monitor may have started after `task-received`."""
        super().send_event(type, name=self.name, args=self.argsrepr, kwargs=self.kwargsrepr, **fields)

    def acknowledge(self) -> None:
        """Acknowledge the message. After a success, report the outcome of a replay: Celery skips `on_success` here."""
        super().acknowledge()
        if not self._ended:
            self._ended = True
            self._failures.report_outcome(self.type, self._delivery, "succeeded")

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
        ignored = isinstance(error, Ignore) and not isinstance(error, AttemptFailed | AttemptPostponed)
        # A termination means one message: others that share its process run again.
        for_another = isinstance(error, Terminated) and self.run_alone is not None and not self.was_revoked
        out_of_memory = isinstance(error, AttemptFailed) and error.failure.reason == "out-of-memory"
        # `return_ok`: the run ended in its process, which passed its end on.
        if not for_another and (ignored or isinstance(error, Terminated)):
            super().on_failure(exc_info, send_failed_event, return_ok)
        elif state.should_terminate or (self.was_cancelled and not return_ok):
            # The worker is stopping: the message stays unacknowledged and goes back to its queue.
            state.task_ready(self)
        elif self.run_alone and not self._ended and (not return_ok or out_of_memory):
            self._run_again(self.run_alone, error)
        else:
            self._fail(error, str(exc_info.traceback or ""), in_process=return_ok)

    def on_revoked(self, reason: str) -> None:
        """Report the outcome of a replay that never ran or did not finish. Celery then acknowledges, as documented."""
        if not self._ended:
            self._ended = True
            self._failures.report_outcome(self.type, self._delivery, "revoked", text=reason)

    def _run_again(self, run_alone: Callable[[Request], None], error: BaseException) -> None:
        """Run the message alone: any of the messages that shared its process may be to blame for the failure."""
        self.run_alone = self.time_start = self.worker_pid = None
        if not is_held(self.message):
            # The broker delivers it again.
            state.task_ready(self)
            return
        text = "%s[%s] runs again, alone: it shared its process: %s"
        logger.warning(text, self.name, self.id, error, extra=self._about)
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
    def _about(self) -> dict[str, Any]:
        attempt = self.request_dict.get("retries", 0) + 1
        return {"task_id": self.id, "task": self.name, "attempt": attempt, "task_kwargs": self.kwargs}

    @property
    def _delivery(self) -> Delivery:
        return original_delivery(self.message)

    def _unacked(self, done: OnDone) -> UnackedMessage:
        return UnackedMessage(self._delivery, partial(is_held, self.message), done, self._about)

    def _fail(self, error: BaseException, trace: str = "", *, in_process: bool = False) -> None:
        """Let the policy decide on a bad end, which Celery has announced if it came `in_process`."""
        if self._ended:
            return
        self._ended = True
        state.task_ready(self)
        if isinstance(error, TimeLimitExceeded):
            try:
                if postpone := self.task.on_time_limit():
                    error = AttemptPostponed(postpone)
            except Exception as failed:  # noqa: BLE001 - The message must be answered, whatever a hook does.
                logger.warning("Hook on_time_limit of %s[%s] failed: %r", self.name, self.id, failed)
        if isinstance(error, AttemptPostponed):
            finish = partial(self._finish, RunEnd(None, f"postponed: {error.postpone.why}"))
            self._failures.postpone(self._unacked(finish), self.type, error.postpone)
            return
        if isinstance(error, AttemptFailed | AttemptRetried):
            failure, recorded = error.failure, states.RETRY if isinstance(error, AttemptRetried) else None
            end = RunEnd(recorded, str(failure), failure.traceback)
        else:
            failure = failure_of(error, trace=trace, task=self.type)
            recorded = states.FAILURE if in_process else None
            end = RunEnd(recorded, str(failure), failure.traceback, error)
        unacked = self._unacked(partial(self._finish, end))
        self._failures.fail(unacked, failure, is_logged=recorded == states.FAILURE)

    def _finish(self, end: RunEnd, decision: Decision, disposition: Disposition) -> None:
        """Acknowledge or reject the message, then announce what became of it."""
        if disposition is Disposition.REJECT:
            # Celery's own `reject` would announce a rejected task, and this one will be retried.
            self.on_reject(logger, self.connection_errors, False)
            self.acknowledged = True
        else:
            self.acknowledge()
        if isinstance(decision, Dead):
            self._call_hook("on_dead_letter", self.args, self.kwargs)
        is_end = isinstance(decision, Dead | Drop)
        event = "task-failed" if is_end else "task-retried"
        self.send_event(event, exception=end.text, traceback=end.traceback, **return_time(decision))
        outcome = states.FAILURE if is_end else states.RETRY
        if end.state != outcome and not isinstance(decision, Postponed):
            self._announce(outcome, end)

    def _announce(self, outcome: str, end: RunEnd) -> None:
        """Record and signal the outcome as Celery does in a run's process: this one was lost, or could not do it."""
        error = end.error or ApplicationError(end.text)
        task, arguments = self.task, (self.id, self.args, self.kwargs)
        try:
            raise error
        except type(error):
            einfo = ExceptionInfo()
        einfo.traceback = end.traceback or einfo.traceback
        try:
            if outcome == states.FAILURE:
                task.backend.mark_as_failure(
                    self.id, error, einfo.traceback, request=self.context, store_result=self.store_errors
                )
            elif self.store_errors:
                task.backend.mark_as_retry(self.id, error, einfo.traceback, request=self.context)
        except Exception as lost:  # noqa: BLE001 - Each backend has its own; the message is settled already.
            logger.warning("%s[%s]: its %s is not in the result backend: %s", self.name, self.id, outcome, lost)
        if outcome == states.RETRY:
            self._call_hook("on_retry", error, *arguments, einfo)
            signals.task_retry.send(sender=task, request=self.context, reason=error, einfo=einfo)
        else:
            self._call_hook("on_failure", error, *arguments, einfo)
            self._call_hook("after_return", outcome, error, *arguments, einfo)
            about = {"task_id": self.id, "args": self.args, "kwargs": self.kwargs}
            signals.task_failure.send(sender=task, exception=error, traceback=None, einfo=einfo, **about)

    def _call_hook(self, name: str, *arguments: Any) -> None:
        hook = getattr(self.task, name, None)
        if hook is not None:
            self._failures.hooks.call(f"Hook {name} of {self.name}[{self.id}]", partial(hook, *arguments))


def _require_valid_headers(headers: Mapping[str, Any]) -> None:
    """Raise InvalidMessage for headers of a task that would stop the worker, or let the message wait in its memory."""
    limits = headers.get("timelimit") or (None, None)
    if not _is_list_of(limits, int | float | None) or len(limits) != 2:
        raise InvalidMessage(f"timelimit {limits!r:.100}: expected two numbers of seconds")
    stamped, stamps = headers.get("stamped_headers") or [], headers.get("stamps") or {}
    if not _is_list_of(stamped, str) or not isinstance(stamps, Mapping):
        raise InvalidMessage(f"stamped_headers {stamped!r:.100}: expected a list of names, and a table as stamps")
    if headers.get("eta"):
        raise InvalidMessage("eta: a worker holds no message until its time; every delay is a message in the broker")


def _is_list_of(values: Any, kind: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(each, kind) for each in values)
