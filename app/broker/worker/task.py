"""Celery's task in a pool process: its end is announced as a retry or a failure, and handed to the main process."""

from __future__ import annotations

import pickle
import sys
import traceback
from contextlib import suppress
from typing import Any, Final, NoReturn

from billiard import current_process
from billiard.exceptions import SoftTimeLimitExceeded
from celery import Task as CeleryTask
from celery.exceptions import Ignore, Reject, Retry, TaskPredicate, WorkerShutdown, WorkerTerminate

from ..errors import ApplicationError, InvalidMessage, Postpone
from ..failure import Failure
from ..headers import REQUEUED
from .failures import failure_of

#: Bytes of a pickled exception that a pool process passes to the main process.
_MAX_PICKLED: Final = 64_000


class AttemptRetried(Retry):  # type: ignore[misc]
    """Carries a failure that will be retried to the main process.

    Celery records and signals a retry, with the error of the task, and calls `on_retry`.
    """

    def __init__(self, failure: Failure, error: BaseException | None = None) -> None:
        super().__init__(str(failure), error)
        self.failure = failure

    def __reduce__(self) -> tuple[type[AttemptRetried], tuple[Failure]]:
        """Leave the error of the task in its process: only the failure is read elsewhere."""
        return type(self), (self.failure,)


class AttemptFailed(Ignore):  # type: ignore[misc]
    """Carries a failure to the main process, which announces it: Celery neither records nor signals an Ignore."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class AttemptPostponed(Ignore):  # type: ignore[misc]
    """Carries a postponement from a pool process to the main process."""

    def __init__(self, postpone: Postpone) -> None:
        super().__init__(postpone)
        self.postpone = postpone


class Task(CeleryTask):  # type: ignore[misc]
    """Base class of every task: a failed run spends the budget of the message."""

    abstract = True
    Request = f"{__package__}.request:Request"
    #: Whether a pool process may run several messages of this task at the same time, each in a thread. The soft time
    #: limit does not count then.
    shares_process = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task; called directly or by `apply`, it raises its exceptions unchanged.

        A task that raises Celery's Reject or Retry has failed like any other. Celery would lose the message of a Reject
        on a queue without a dead-letter exchange, and that of a Retry on every queue. A Reject with `requeue` spends no
        retry: the message is back after the shortest wait, instead of at once and again and again. Ignore is passed on:
        it says that nothing is left to do.
        """
        if self.request.called_directly:
            return super().__call__(*args, **kwargs)
        # Celery's own would begin another request.
        run = self.run if super().__call__.__func__ is CeleryTask.__call__ else super().__call__
        if self.request.is_eager:
            return run(*args, **kwargs)
        try:
            return run(*args, **kwargs)
        except Ignore:
            raise
        except (SystemExit, KeyboardInterrupt) as error:
            # A pool process ends by it, and the main process notices the loss; a thread of the worker just goes on.
            if current_process().name != "MainProcess" or isinstance(error, WorkerShutdown | WorkerTerminate):
                raise
            raise AttemptFailed(failure_of(error, trace=traceback.format_exc(), task=self.name)) from None
        except Exception as error:
            end = self._end_of(error)
            if end is error:
                raise
            raise end from (None if isinstance(end, AttemptPostponed) else error)

    def _end_of(self, error: Exception) -> Exception:
        """Return the exception by which a run ends: Celery records a retry, or a failure by this error.

        The main process announces what Celery cannot: an error that cannot be pickled, or one for which the message may
        run again at once.
        """
        if isinstance(error, Postpone):
            return AttemptPostponed(error)
        if isinstance(error, Reject) and error.requeue:
            why = f"Reject({error.reason!r:.100}, requeue=True)"
            return AttemptPostponed(Postpone(0, why, code="requeued", headers={REQUEUED: 1}))
        if isinstance(error, SoftTimeLimitExceeded) and (waiting := self.on_time_limit()):
            return AttemptPostponed(waiting)
        failure = failure_of(error, trace=traceback.format_exc(), task=self.name)
        if isinstance(error, MemoryError):
            return AttemptFailed(failure)
        queue = self.request.get("retried_by")
        if queue and not self.app.retries.policies.policy_for(queue).is_fatal(failure):
            return AttemptRetried(failure, error)
        if isinstance(error, TaskPredicate):
            return AttemptFailed(failure)
        # The main process can be given an error that is small, and comes back as the same class.
        with suppress(Exception):  # The class may raise anything.
            pickled = pickle.dumps(error)
            if len(pickled) <= _MAX_PICKLED and type(pickle.loads(pickled)) is type(error):  # noqa: S301 - Just pickled.
                return error
        return AttemptFailed(failure)

    def retry(
        self, args: Any = None, kwargs: Any = None, exc: BaseException | None = None, *_more: Any, **_options: Any
    ) -> NoReturn:
        """Raise `exc`, or the exception being handled: the queue's policy decides when and how often to retry.

        This keeps tasks working that were written for Celery's own retry, whose copy would wait in a worker's memory.
        The message itself comes back, so other arguments than its own raise InvalidMessage, which is permanent.
        """
        error = exc or sys.exception()
        other_args = args is not None and list(args) != list(self.request.args or ())
        if other_args or (kwargs is not None and dict(kwargs) != dict(self.request.kwargs or {})):
            raise InvalidMessage(
                f"{self.name}: a message comes back with the arguments that it has; send a new one instead of retry()"
            ) from error
        raise error or ApplicationError(f"{self.name} asked for a retry")

    def on_dead_letter(self, args: Any, kwargs: Any) -> None:
        """Act on a dead-lettered message: a hook for subclasses, called in the main process. It must be quick.

        If it raises Postpone, it is called again after its seconds; other hooks wait behind it.
        """

    def on_time_limit(self) -> Postpone | None:
        """Return why a run waits that met its time limit, its budget unspent, or None if it failed: the default.

        A hook for subclasses. At the soft limit it is called in the pool process, at the hard one in the main process.
        It must be quick.
        """
        return None
