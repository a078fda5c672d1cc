"""Results of messages that share a process, as they come: a pipe from the processes of the pool to the worker.

The pool passes one result for a job, when all of its messages have ended. Without the pipe, one slow message holds up
the acknowledgements of the others, and all of them run again after the loss of their process.
"""

from __future__ import annotations

import os
import pickle
import select
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from celery.utils.log import get_logger

logger = get_logger(__name__)

#: Seconds after which the results of a job's messages are sent one by one. Most jobs have ended by then.
PATIENCE: Final = 1.0

#: The length of a report, before it.
_LENGTH: Final = struct.Struct("!H")


@dataclass(frozen=True, slots=True)
class EarlyResult:
    """The result of one message: the number of its job, and its index among the messages of the job."""

    job: int
    index: int
    result: Any


class EarlyResults:
    """The pipe, made by the worker before it starts processes, which inherit it."""

    def __init__(self) -> None:
        #: `reader` is for the worker's event loop, `writer` for the processes.
        self.reader, self.writer = os.pipe()
        for end in (self.reader, self.writer):
            os.set_blocking(end, False)
        self._unread = b""
        #: While the worker that stops waits for its jobs, the pool's timer reads in another thread.
        self._lock = threading.Lock()

    def read(self) -> list[EarlyResult]:
        """Return what has been reported since the last call."""
        with self._lock:
            with suppress(BlockingIOError):
                while data := os.read(self.reader, 2**16):
                    self._unread += data
            results = []
            while len(self._unread) >= _LENGTH.size:
                end = _LENGTH.size + _LENGTH.unpack_from(self._unread)[0]
                if len(self._unread) < end:
                    break
                report, self._unread = self._unread[_LENGTH.size : end], self._unread[end:]
                try:
                    results.append(EarlyResult(*pickle.loads(report)))  # noqa: S301 - From the worker's own processes.
                except Exception:
                    # The result comes again at the end of its job.
                    logger.exception("A result of a message cannot be read")
            return results


def report(writer: int, result: EarlyResult) -> None:
    """Write a result to the pipe, or leave it to the end of the job: if it is long, or the worker does not read."""
    # What cannot be pickled fails at the end of the job, which says so.
    with suppress(OSError, pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError):
        data = pickle.dumps((result.job, result.index, result.result))
        # Up to PIPE_BUF bytes are written at once, or not at all: several processes write (pipe(7)).
        if _LENGTH.size + len(data) <= select.PIPE_BUF:
            os.write(writer, _LENGTH.pack(len(data)) + data)


class EarlyReports:
    """Reports the results of one job from its process: none before PATIENCE seconds, then each as it comes."""

    def __init__(self, writer: int, job: int) -> None:
        """Write to the pipe's end `writer`. The object goes to the process in the job, before `begin`."""
        self._writer = writer
        self._job = job

    def begin(self) -> None:
        """Let the time run."""
        self._ended: list[EarlyResult] = []
        self._lock = threading.Lock()
        self._at_once = False

        def report_ended() -> None:
            with self._lock:
                self._at_once = True
                ended, self._ended = self._ended, []
            for each in ended:
                report(self._writer, each)

        self._timer = threading.Timer(PATIENCE, report_ended)
        self._timer.daemon = True
        self._timer.start()

    def note(self, index: int, result: Any) -> None:
        """Note the result of one message."""
        early = EarlyResult(self._job, index, result)
        with self._lock:
            if not self._at_once:
                self._ended.append(early)
                return
        report(self._writer, early)

    def end(self) -> None:
        """Report nothing more: the job's own result has the rest."""
        self._timer.cancel()
