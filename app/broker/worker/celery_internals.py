"""The only module that relies on internals of Celery and billiard.

Each class or function says which behaviour of Celery has no documented hook. tests/unit/test_celery_internals.py fails
when one of the internals changes.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from os import _exit as end_at_once  # With the module it would be counted as a private name of billiard.
from typing import Any

from celery.beat import PersistentScheduler
from celery.concurrency import asynpool, prefork
from celery.events import dispatcher
from celery.utils.log import get_logger
from celery.worker.consumer import Consumer
from celery.worker.request import Request
from kombu import pools

from ..amqp_internals import close_after_fork

logger = get_logger(__name__)


def end_process(destroy: Callable[[int, int], None], pid: int, exitcode: int) -> None:
    """Let Celery's `destroy` call the receivers of the end of a process, and end it at once.

    billiard would tell the parent, and wait a second for the parent to terminate the process. The parent notices the
    end of a process anyway, and reads what it has written.
    """
    destroy(pid, exitcode)
    end_at_once(exitcode)


class Pool(asynpool.AsynPool):  # type: ignore[misc]
    """A prefork pool that hands no job to a second process, and each job to an idle process without a detour.

    If a process dies before its parent reads that it began a job, Celery silently hands the job to another process. A
    task that kills its process at once would run again and again from the worker's memory, without spending its budget.
    """

    #: Whether the worker stops.
    is_closed = False

    def __init__(self, *args: Any, on_process_exit: Callable[[int, int], None], **options: Any) -> None:
        super().__init__(*args, on_process_exit=partial(end_process, on_process_exit), **options)

    def register_with_event_loop(self, hub: Any) -> None:
        """Write waiting jobs to idle processes at the end of each turn of the event loop.

        Celery lets the poller report in the next turn that the pipe of an idle process is writable, although it is
        empty. In every turn without a job it removes each pipe from the poller, in which it is not.
        """
        super().register_with_event_loop(hub)
        on_poll_start: Callable[[], None] = self.on_poll_start

        def write_jobs() -> None:
            if self.sched_strategy != asynpool.SCHED_STRATEGY_FAIR or not self._all_inqueues.isdisjoint(hub.writers):
                on_poll_start()
            elif self.outbound_buffer:
                idle = self._all_inqueues - self._active_writes - self._busy_workers
                if idle:
                    hub.consolidate_callback(list(idle)[: len(self.outbound_buffer)])

        # Celery adds the function of the first connection, and keeps it.
        if on_poll_start in hub.on_tick:
            hub.on_tick.remove(on_poll_start)
            hub.on_tick.add(write_jobs)

    def close(self) -> None:
        """Take no more jobs: the worker stops."""
        self.is_closed = True
        super().close()

    def flush(self) -> None:
        """Forget what no process has. A worker that stops waits for all that its processes have received.

        Celery would forget each job whose beginning it has not read yet. The process runs it nevertheless, and its
        message would be delivered again.
        """
        if not self.is_closed:
            super().flush()
            return
        while self.outbound_buffer:
            self.outbound_buffer.popleft().discard()

    def on_job_process_down(self, job: Any, pid_gone: int) -> None:
        """Count a job as begun if its process was killed after it received the whole job; it is then lost, too."""
        process = job._write_to
        # A process that ended by itself, after another job, did not read this one.
        killed = process is not None and (process.exitcode or 0) < 0
        deliberately = killed and getattr(process, "_controlled_termination", False)
        received = killed and asynpool._get_job_writer(job) is None
        if job.accepted() or not killed or deliberately or not received:
            super().on_job_process_down(job, pid_gone)
            return
        job._ack(None, time.time(), process.pid, None)
        # The job is accepted now, so this cleans up after the process and does not hand the job to another.
        self.on_partial_read(job, process)
        self.on_job_process_lost(job, process.pid, process.exitcode)


@dataclass(frozen=True, slots=True)
class PoolCall:
    """What a request hands to the pool: a function, its arguments, its time limits and its callbacks."""

    target: Callable[..., Any]
    args: Sequence[Any]
    options: Mapping[str, Any]


class TaskPool(prefork.TaskPool):  # type: ignore[misc]
    """Celery's prefork pool with the Pool above, which can tell what a request would hand to it."""

    Pool = Pool

    _collected: list[PoolCall] | None = None

    def apply_async(self, target: Callable[..., Any], args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Hand a call to a process, or only note it for `calls_of`."""
        if self._collected is None:
            return super().apply_async(target, args, kwargs, **options)
        self._collected.append(PoolCall(target, args, options))
        return None

    def calls_of(self, request: Any) -> list[PoolCall]:
        """Return what a request hands to the pool, without doing it; raises TaskRevokedError.

        Celery's class of a task's requests keeps this pool's `apply_async`, whichever pool it is given.
        """
        collected: list[PoolCall] = []
        self._collected = collected
        try:
            request.execute_using_pool(self)
        finally:
            self._collected = None
        return collected


class RevocableRequest(Request):  # type: ignore[misc]
    """Celery's request with a hook for revoked messages, and with its private context made public.

    Celery sends the events of a revoked message and of a cancelled run before it does anything else about them. Then it
    records the revoked one, and acknowledges it last: without this, a result backend that is away would prevent it.
    """

    #: Whether the worker cancelled the run, to stop or to reconnect.
    was_cancelled = False
    #: Whether the message was announced as revoked, or is to be terminated when its process reports the start.
    was_revoked = False
    #: Whether the event of a revoked message was sent.
    _is_announced = False

    def on_revoked(self, reason: str) -> None:
        """Act before Celery acknowledges a message that was revoked, has expired or was terminated."""

    def send_event(self, type: str, **fields: Any) -> None:
        """Note why the message ends, and send the event."""
        if type == "task-cancelled":
            self.was_cancelled = True
        elif type == "task-revoked":
            self.was_revoked = self._is_announced = True
            self.on_revoked("expired" if fields["expired"] else "terminated" if fields["terminated"] else "revoked")
        super().send_event(type, **fields)

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Kill the process of the run, at once or when it reports the start."""
        self.was_revoked = True
        with self._acknowledged_if_revoked():
            super().terminate(pool, signal)

    def revoked(self) -> bool:
        """Return whether the message was revoked or has expired; it is acknowledged then."""
        with self._acknowledged_if_revoked():
            if not super().revoked():
                return False
        return True

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """Handle the end of a run; a run that was terminated is revoked."""
        with self._acknowledged_if_revoked():
            super().on_failure(exc_info, send_failed_event, return_ok)

    @contextmanager
    def _acknowledged_if_revoked(self) -> Iterator[None]:
        """Acknowledge a message that the block announces as revoked, and then cannot record as such."""
        try:
            yield
        except Exception as error:
            if not self._is_announced:
                raise
            logger.warning("%s[%s] is revoked, and its result is not recorded: %s", self.name, self.id, error)
            # If it is the connection to the broker that broke, this raises the same again.
            self.acknowledge()

    @property
    def context(self) -> Any:
        """The task's context, which result backends need; Celery gives it to them itself only for its own outcomes."""
        return self._context


def guard_start(controller: Any, cannot_start: Callable[[Exception], None]) -> None:
    """Call `cannot_start` with the exception of a task that cannot be handed to the pool.

    A task for which no process is free is handed over later, from a callback of the event loop, which would only log
    the exception. The controller reads this method at each call.
    """
    start = controller._process_task

    def process_task(request: Any) -> None:
        try:
            start(request)
        except Exception as error:  # noqa: BLE001 - Whatever it is, the message is not to blame.
            cannot_start(error)

    controller._process_task = process_task


def start_in_free_process(controller: Any, request: Any) -> None:
    """Hand a request to the pool, for which the controller's semaphore was acquired. A revoked one releases it."""
    controller._process_task(request)


#: The steps of Celery's consumer except the one that declares 28 `celery_delayed_*` queues wherever it finds a quorum
#: queue. Every delay of this package has a queue of its own, and no setting turns the step off.
STEPS_WITHOUT_DELAYED_DELIVERY = tuple(
    step for step in Consumer.Blueprint.default_steps if "delayed_delivery" not in str(step).lower()
)


class BeatScheduler(PersistentScheduler):  # type: ignore[misc]
    """Celery's scheduler, which logs a broker's outage in single lines, ever more rarely, and always stops.

    Celery would log a traceback for each message that cannot be sent: one a second for ticks.
    """

    _failed = 0
    _next_line = 0.0

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send an entry's message. A failure is logged; the entry is due again at its next time."""
        try:
            self.apply_async(entry, producer=producer, advance=False)
        except Exception as error:  # noqa: BLE001 - One entry must not stop the others.
            self._failed += 1
            if time.monotonic() >= self._next_line:
                # Each pause between two lines is about as long as the outage so far, and at most a minute.
                self._next_line = time.monotonic() + min(self._failed, 60)
                logger.warning("Not sent, failure %d in a row, next attempt when it is due: %s", self._failed, error)
            return
        if self._failed:
            logger.warning("%s is sent again, after %d failure(s)", entry.task, self._failed)
        self._failed, self._next_line = 0, 0.0

    def close(self) -> None:
        """Write the schedule to its file. The connection ends with the process.

        Celery calls this in its handler of SIGTERM, and closes the connection in it. While a message is written, the
        same thread holds py-amqp's lock of the connection, and beat would wait for itself until SIGKILL.
        """
        self.__dict__.pop("connection", None)
        super().close()


class EventDispatcher(dispatcher.EventDispatcher):  # type: ignore[misc]
    """Tries an event at most twice, with a new connection between. One that cannot be sent is kept for the next.

    Celery sends a worker's heartbeat with `retry`. Its connection may be closed, as while the machine slept. kombu may
    then declare the exchange on the closed channel, and connect again for the next attempt, without end.
    """

    def send(self, type: str, **options: Any) -> Any:
        """Send an event, or keep it."""
        return super().send(type, **{**options, "retry_policy": {"max_retries": 1, "interval_start": 0}})


def use_classes(app: Any, *, amqp: str, task: Any, event_dispatcher: str) -> None:
    """Set the classes of `app.amqp`, `app.Task` and `app.events.Dispatcher`, also where Celery has cached them."""
    app.amqp_cls, app.task_cls, app.events.dispatcher_cls = amqp, task, event_dispatcher
    for cached in ("amqp", "Task"):
        app.__dict__.pop(cached, None)
    app.events.__dict__.pop("Dispatcher", None)


def leave_connections_after_fork(amqp: Any) -> None:
    """Let every forked child of this process open connections of its own for Celery's `app.amqp`.

    Celery and kombu notice only forks of multiprocessing, and kombu then shuts the parent's sockets down.
    """

    def forget() -> None:
        owner = reference()
        if owner is None:
            return
        for group in (pools.producers, pools.connections):
            close_after_fork(group.values())
            group.clear()
        owner.producers = owner.app._pool = None

    reference = weakref.ref(amqp)
    os.register_at_fork(after_in_child=forget)
