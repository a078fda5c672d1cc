"""Celery's pool of processes, in which a run that may have begun counts: the death of its process spends a retry."""

from __future__ import annotations

import time
from typing import Any

from celery.concurrency import asynpool, prefork


class Pool(asynpool.AsynPool):  # type: ignore[misc]
    """A prefork pool that hands no job to a second process.

    Celery's does, and tells nobody, where the first one died before it was read that the job was begun: a task that
    kills its process at once would run again and again from the worker's memory.
    """

    def on_job_process_down(self, job: Any, pid_gone: int) -> None:
        """Handle a job whose process is gone; one that was handed over in whole to a killed process is lost with it."""
        process = job._write_to
        if job._accepted or process is None or not _may_have_begun(job, process):
            super().on_job_process_down(job, pid_gone)
            return
        job._ack(None, time.time(), process.pid, None)
        # It is accepted now, so this cleans up after the process, and hands the job to no other.
        self.on_partial_read(job, process)
        self.on_job_process_lost(job, process.pid, process.exitcode)


class TaskPool(prefork.TaskPool):  # type: ignore[misc]
    """The pool of app/retry's workers."""

    Pool = Pool


def _may_have_begun(job: Any, process: Any) -> bool:
    """Return whether a process may have died in a job: one that ended by itself, after another job, did not read it."""
    by_signal = (process.exitcode or 0) < 0 and not getattr(process, "_controlled_termination", False)
    return by_signal and not process._is_alive() and asynpool._get_job_writer(job) is None
