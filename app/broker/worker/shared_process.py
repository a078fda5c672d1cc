"""What a pool process does with several messages at once: the task of each runs in a thread of its own."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

#: Messages that one pool process runs at the same time.
MAX_TOGETHER = 16

#: Messages that a worker prefetches for each process: those that run, and as many that are next.
PREFETCHED = 2 * MAX_TOGETHER

#: Seconds that a message waits in the worker for its run. Then it is published again: the broker limits the time
#: without acknowledgement, and after a group that hangs each of its messages runs alone.
MAX_WAIT = 150.0

#: A task's function in the pool, and its arguments.
GroupedCall = tuple[Callable[..., Any], Sequence[Any]]


def run_together(calls: Sequence[GroupedCall]) -> list[Any]:
    """Run calls at the same time, the first one in this thread; return their results in the order of the calls.

    An exception that escapes from one of them is raised when all have ended, and their results are lost. So is the
    error that no thread can be started. The end of the process waits for none of them.
    """
    running: list[Future[Any]] = []
    try:
        threads = _threads(os.getpid())
        try:
            running += (threads.submit(target, *args) for target, args in calls[1:])
        except RuntimeError:
            # No thread can be started. The call that it was for waits for one of the others, and must not begin.
            _threads.cache_clear()
            threads.shutdown(cancel_futures=True)
            raise
        target, args = calls[0]
        return [target(*args), *(each.result() for each in running)]
    except Exception:
        wait(running)
        raise


@functools.cache
def _threads(_pid: int) -> ThreadPoolExecutor:
    """Return the threads of a process, which a forked child does not have."""
    return ThreadPoolExecutor(MAX_TOGETHER - 1, thread_name_prefix="together")
