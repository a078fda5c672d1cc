"""The limit of the CPU time in which a page is parsed, and of the processes that read parts of pages beside it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from billiard import current_process

from app.broker.headers import LAST_ERROR

#: Seconds of CPU in which a page is parsed and classified. One of 5 MB takes about one.
MAX_CPU_SECONDS = 4.0
#: Child processes of one process of a worker's pool that read PDFs at the same time.
MAX_CHILDREN = 2

#: Held by the thread whose page is parsed.
_measured = threading.Lock()
_of_thread = threading.local()
_children = threading.BoundedSemaphore(MAX_CHILDREN)


@contextmanager
def cpu_limit(seconds: float = MAX_CPU_SECONDS) -> Iterator[None]:
    """End this process by SIGVTALRM if the block takes more CPU time. Only a process of a worker's pool is ended.

    No exception interrupts a call into C, such as a parser's. The next run of the message skips the page.
    """
    if current_process().name == "MainProcess":
        yield
        return
    # The timer counts the CPU time of all threads: one page at a time. If those of other threads end the process early,
    # each of its messages runs again alone.
    with _measured:
        if threading.current_thread() is threading.main_thread():
            # With a handler in Python, the signal would wait for the end of the call.
            signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        _of_thread.is_measured = True
        try:
            yield
        finally:
            _of_thread.is_measured = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


@contextmanager
def child_at_work() -> Iterator[None]:
    """Let other threads parse their pages during the block, in which this one waits for a child process.

    A `cpu_limit` around the block goes on after it with the time that was left. At most MAX_CHILDREN such blocks run.
    """
    if not getattr(_of_thread, "is_measured", False):
        with _children:
            yield
        return
    left, _ = signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    _measured.release()
    try:
        with _children:
            yield
    finally:
        _measured.acquire()
        # Zero would mean no limit.
        signal.setitimer(signal.ITIMER_VIRTUAL, max(left, 0.001))


def limit_was_exceeded(headers: Mapping[str, Any]) -> bool:
    """Return whether the limit ended the last run of the message with these headers: Celery names the signal."""
    return "SIGVTALRM" in str(headers.get(LAST_ERROR, ""))
