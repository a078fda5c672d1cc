"""Celery's task in a pool process: whatever it raises becomes a value that its parent process can act on."""

from __future__ import annotations

import sys
import traceback
from typing import Any, NoReturn

from billiard import current_process
from celery import Task as CeleryTask
from celery.exceptions import Ignore, WorkerShutdown, WorkerTerminate

from ..errors import ApplicationError, InvalidMessage, Postpone
from ..policies.base import Failure
from .failures import failure_of


class AttemptFailed(Ignore):  # type: ignore[misc]
    """Carries a failure from the pool's child to the parent.

    Celery lets an Ignore through without marking, logging or signalling a failure: an attempt that will be retried
    is none, and only the parent knows whether it will be.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class AttemptPostponed(Ignore):  # type: ignore[misc]
    """Carries a postponement from the pool's child to the parent."""

    def __init__(self, postpone: Postpone) -> None:
        super().__init__(postpone)
        self.postpone = postpone


class Task(CeleryTask):  # type: ignore[misc]
    """Base of every task: turns what goes wrong into a value for the parent."""

    abstract = True
    Request = f"{__package__}.request:Request"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task. Called directly, errors are raised as they are.

        Celery's Reject and Retry, raised by a task itself, are failures like any other: the first would destroy the
        message on a queue without a dead-letter exchange, and the second on every queue. Ignore is let through, for it
        says that there is nothing left to do.
        """
        if self.request.called_directly:
            return super().__call__(*args, **kwargs)
        try:
            return self.run(*args, **kwargs)
        except Postpone as postpone:
            raise AttemptPostponed(postpone) from None
        except Ignore:
            raise
        except (SystemExit, KeyboardInterrupt) as error:
            # A pool's child ends by it, and its parent notes the loss; a thread of the worker just goes on.
            if current_process().name != "MainProcess" or isinstance(error, WorkerShutdown | WorkerTerminate):
                raise
            raise AttemptFailed(failure_of(error, trace=traceback.format_exc(), task=self.name)) from None
        except Exception as error:  # noqa: BLE001 - Every failure spends the same budget.
            raise AttemptFailed(failure_of(error, trace=traceback.format_exc(), task=self.name)) from None

    def retry(
        self, args: Any = None, kwargs: Any = None, exc: BaseException | None = None, *_more: Any, **_options: Any
    ) -> NoReturn:
        """Raise `exc`, or what is being handled: the queue's policy says when and how often, not the caller.

        This keeps tasks that were written for Celery's own retry working; its copy would wait in a worker's memory.
        What comes back is the message itself: InvalidMessage, raised for other arguments than it has, is permanent.
        """
        error = exc or sys.exception()
        given = args is not None and list(args) != list(self.request.args or ())
        if given or (kwargs is not None and dict(kwargs) != dict(self.request.kwargs or {})):
            raise InvalidMessage(
                f"{self.name}: a message comes back with the arguments that it has; send a new one instead of retry()"
            ) from error
        raise error or ApplicationError(f"{self.name} asked to be run again")

    def on_dead_letter(self, args: Any, kwargs: Any) -> None:
        """Hook, called in the parent after a message of this task went to the dead set. Must be quick."""

    def on_postponed(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Hook, called in the parent when a message that was postponed with a mark stands in its delay queue.

        It is not acknowledged yet. Must be quick.
        """
