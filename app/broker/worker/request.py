"""Celery's request: every bad end of a run becomes a decision of the queue's retry policy."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback
from celery import signals
from celery.exceptions import Ignore, Terminated, TimeLimitExceeded
from celery.utils.log import get_logger
from celery.worker import state
from celery.worker.request import Request as CeleryRequest

from ..delivery import delivery_of
from ..errors import ApplicationError, Postpone
from ..policies.base import Dead, Decision, Drop, Postponed
from .carry_out import Disposition
from .failures import FailureHandler, failure_of
from .task import AttemptFailed, AttemptPostponed

if TYPE_CHECKING:
    from billiard.einfo import ExceptionInfo

logger = get_logger(__name__)


class Request(CeleryRequest):  # type: ignore[misc]
    """A task's message in the parent. Its ends are routed through `FailureHandler`; Celery's own would ack or loop."""

    _ended = False

    def may_run(self) -> bool:
        """Return whether the task may run; where its policy buries the message instead, see to that."""
        told = "WorkerLostError: one worker after another died under this message", ""
        self._ended = True
        if self._failures.arrived(delivery_of(self._message), self._type, partial(self._done, told)):
            self._ended = False
            return True
        state.task_ready(self)
        return False

    def acknowledge(self) -> None:
        """Acknowledge; after a good end, whoever asked for it is told. (Celery lets no `on_success` of ours run.)"""
        super().acknowledge()
        if not self._ended:
            self._ended = True
            self._failures.tell(delivery_of(self._message), "lived")

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
        if not ours and isinstance(error, (Ignore, Terminated)):
            super().on_failure(exc_info, send_failed_event, return_ok)
        elif state.should_terminate or (self._already_cancelled and not ours):
            # The worker itself is stopping: unacknowledged, the message goes back to its queue.
            state.task_ready(self)
        else:
            self._fail(error, str(exc_info.traceback or ""))

    def _announce_revoked(self, reason: str, *told: Any) -> None:
        """Tell that it never ran, or not to its end; by design, what is revoked or expired is then acknowledged."""
        if not self._ended:
            self._ended = True
            self._failures.tell(delivery_of(self._message), "revoked", reason)
        super()._announce_revoked(reason, *told)

    @property
    def _failures(self) -> FailureHandler:
        failures: FailureHandler = self._app.failures
        return failures

    def _fail(self, error: BaseException, trace: str = "") -> None:
        if self._ended:
            return
        self._ended = True
        state.task_ready(self)
        delivery = delivery_of(self._message)
        if isinstance(error, AttemptPostponed):
            done = partial(self._waits, error.postpone)
            self._failures.postponed(delivery, self._type, error.postpone, done)
            return
        failure = error.failure if isinstance(error, AttemptFailed) else failure_of(error, trace=trace, task=self._type)
        self._failures.failed(delivery, failure, partial(self._done, (str(failure), failure.traceback)))

    def _waits(self, postpone: Postpone, decision: Decision, settlement: Disposition) -> None:
        if postpone.mark and isinstance(decision, Postponed):
            self._call_hook("on_postponed", self.id)
        self._done((f"postponed: {postpone.why}", ""), decision, settlement)

    def _done(self, told: tuple[str, str], decision: Decision, settlement: Disposition) -> None:
        if settlement is Disposition.REJECT:
            # Celery's own `reject` would announce a rejected task, and this one is to be retried.
            self._on_reject(logger, self._connection_errors, False)
            self.acknowledged = True
        else:
            self.acknowledge()
        text, trace = told
        if isinstance(decision, Dead):
            self._call_hook("on_dead_letter")
        if isinstance(decision, Dead | Drop):
            self.send_event("task-failed", exception=text, traceback=trace)
            self._announce_failure(text, trace)
        else:
            self.send_event("task-retried", exception=text, traceback=trace)

    def _announce_failure(self, text: str, trace: str) -> None:
        error = ApplicationError(text)
        self.task.backend.mark_as_failure(
            self.id, error, traceback=trace or None, request=self._context, store_result=self.store_errors
        )
        signals.task_failure.send(
            sender=self.task,
            task_id=self.id,
            exception=error,
            args=self.args,
            kwargs=self.kwargs,
            traceback=None,
            einfo=None,
        )

    def _call_hook(self, name: str, *told: str) -> None:
        hook = getattr(self.task, name, None)
        if hook is None:
            return
        try:
            hook(*told, self.args, self.kwargs)
        except Exception as error:  # noqa: BLE001 - The message is safe in the broker; bookkeeping must not undo that.
            logger.warning("%s of %s[%s]: %r", name, self.name, self.id, error)
