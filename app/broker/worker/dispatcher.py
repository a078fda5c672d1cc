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
        job = _Job(self._pool)
        for request in requests:
            try:
                job.add(request)
            except TaskRevokedError:
                continue
            except Exception as error:  # noqa: BLE001 - Whatever it is, the message is not to blame.
                self._cannot_start(error)
            else:
                request.run_alone = self.offer_alone
        try:
            return job.start()
        except Exception as error:  # noqa: BLE001 - Whatever it is, the messages are not to blame.
            self._cannot_start(error)
            return False


class _Job:
    """Several requests in one process. What the pool reports of the job, it reports of each of them."""

    def __init__(self, pool: TaskPool) -> None:
        self._pool = pool
        self._calls: list[PoolCall] = []
        self._requests: list[Any] = []

    def add(self, request: Any) -> None:
        """Add a request; raises TaskRevokedError."""
        self._calls += self._pool.calls_of(request)
        self._requests.append(request)

    def start(self) -> bool:
        """Hand the job to the pool; return whether there is anything to do."""
        if not self._calls:
            return False
        self._pool.apply_async(
            run_together,
            args=([(call.target, call.args) for call in self._calls],),
            accept_callback=self._on_accepted,
            callback=self._on_results,
            error_callback=self._on_failure,
            # A soft limit would interrupt the thread of one of them, whichever is to blame.
            timeout=max((call.options["timeout"] or 0) for call in self._calls) or None,
        )
        return True

    def _on_accepted(self, pid: int, began: float) -> None:
        for call in self._calls:
            _report(call, "accept_callback", pid, began)

    def _on_results(self, results: Sequence[Any]) -> None:
        for call, result in zip(self._calls, results, strict=True):
            _report(call, "callback", result)

    def _on_failure(self, error: ExceptionInfo) -> None:
        self._requests[0].waiting_since = math.inf
        for call in self._calls:
            _report(call, "error_callback", error)


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
