"""Hands messages to the pool: one at once where a process is free, several as one job where all are busy."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.exceptions import TaskRevokedError
from celery.utils.log import get_logger

from .celery_internals import PoolCall, TaskPool, start_in_free_process
from .shared_process import MAX_TOGETHER, MAX_WAIT, PREFETCHED, run_together

logger = get_logger(__name__)


class Dispatcher:
    """Gathers messages while all processes are busy, and hands up to MAX_TOGETHER of them to the next free one.

    Each message stays a request of its own, with its events, its acknowledgement and its budget. A message that lost
    its process together with others runs again, alone in a process: its death is then its own.

    A message that has waited for MAX_WAIT seconds is set aside and not run. Only the first of those that lost a process
    is run then: so a message that hangs spends its budget.
    """

    def __init__(self, pool: TaskPool, controller: Any, cannot_start: Callable[[Exception], None]) -> None:
        """Hand messages to the pool of a Celery worker. `cannot_start` takes the exception of one that cannot start."""
        self._pool = pool
        self._semaphore = controller.semaphore
        self._controller = controller
        self._cannot_start = cannot_start
        self._waiting: deque[Any] = deque()
        self._alone: deque[Any] = deque()
        self._awaits_process = False

    def offer(self, request: Any) -> None:
        """Hand a request to the pool, now or with others."""
        request.waiting_since = time.monotonic()
        self._waiting.append(request)
        self._await_process()

    def offer_alone(self, request: Any) -> None:
        """Hand a request to the pool before all that wait, and without others."""
        self._alone.append(request)
        self._await_process()

    def connection_lost(self) -> None:
        """Forget what has not begun: the broker delivers it again. Celery has emptied its semaphore's queue."""
        self._waiting.clear()
        self._alone.clear()
        self._awaits_process = False

    def _await_process(self) -> None:
        if not self._awaits_process and (self._alone or self._waiting):
            self._awaits_process = True
            self._semaphore.acquire(self._on_free_process)

    def _on_free_process(self) -> None:
        self._awaits_process = False
        oldest = time.monotonic() - MAX_WAIT
        for requests in (self._alone, self._waiting):
            for request in [each for each in requests if each.waiting_since < oldest]:
                requests.remove(request)
                request.set_aside()
        if self._alone:
            start_in_free_process(self._controller, self._alone.popleft())
        elif len(self._waiting) == 1:
            start_in_free_process(self._controller, self._waiting.popleft())
        elif not self._start_together([self._waiting.popleft() for _ in range(min(MAX_TOGETHER, len(self._waiting)))]):
            self._semaphore.release()
        self._await_process()

    def _start_together(self, requests: Sequence[Any]) -> bool:
        """Hand requests to the pool as one job; return whether there is one that was not revoked."""
        calls: list[PoolCall] = []
        first: Any = None
        for request in requests:
            try:
                calls += self._pool.calls_of(request)
            except TaskRevokedError:
                continue
            except Exception as error:  # noqa: BLE001 - Whatever it is, the message is not to blame.
                self._cannot_start(error)
            else:
                request.run_alone = self.offer_alone
                first = first or request
        return bool(calls) and self._start(calls, first)

    def _start(self, calls: Sequence[PoolCall], first: Any) -> bool:
        """Hand calls to the pool as one job, of which `first` is the first request; return whether it was possible.

        What the pool reports of the job is reported of each request.
        """

        def on_accepted(pid: int, began: float) -> None:
            for call in calls:
                _report(call, "accept_callback", pid, began)

        def on_results(results: Sequence[Any]) -> None:
            for call, result in zip(calls, results, strict=True):
                _report(call, "callback", result)

        def on_failure(error: ExceptionInfo) -> None:
            first.waiting_since = math.inf
            for call in calls:
                _report(call, "error_callback", error)

        try:
            self._pool.apply_async(
                run_together,
                args=([(call.target, call.args) for call in calls],),
                accept_callback=on_accepted,
                callback=on_results,
                error_callback=on_failure,
                # A soft limit would interrupt the thread of one of them, whichever is to blame.
                timeout=max((call.options["timeout"] or 0) for call in calls) or None,
            )
        except Exception as error:  # noqa: BLE001 - Whatever it is, the messages are not to blame.
            self._cannot_start(error)
            return False
        return True


def _report(call: PoolCall, callback: str, *report: Any) -> None:
    """Call a callback of a request. If it raises, the other requests of the job still get their reports."""
    try:
        call.options[callback](*report)
    except MemoryError:  # Celery raises it on purpose, and the pool ends the worker.
        raise
    except Exception:
        logger.exception("A report of the pool could not be handled: %s", callback)


def prefetch_counts(app: Any, processes: int) -> dict[str, int]:
    """Return how many messages to prefetch from each queue whose tasks share a process, by the queue's name."""
    names = [name for name, task in app.tasks.items() if getattr(task, "shares_process", False)]
    return {app.amqp.router.route({}, name)["queue"].name: processes * PREFETCHED for name in names}
