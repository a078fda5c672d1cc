"""What a pool process does with several messages at once: the task of each runs in a thread of its own."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from .early_results import EarlyReports

#: Messages that one pool process runs at the same time.
MOST = 16

#: Messages that a worker prefetches for each process: those that run, and as many that are next.
PREFETCHED = 2 * MOST

#: Seconds that a message waits in the worker for its run. Then it is published again: the broker limits the time
#: without acknowledgement, and after a group that hangs each of its messages runs alone.
MAX_HELD = 150.0

#: A task's function in the pool, and its arguments.
TaskCall = tuple[Callable[..., Any], Sequence[Any]]


def run_together(calls: Sequence[TaskCall], reports: EarlyReports | None = None) -> list[Any]:
    """Run calls at the same time, the first one in this thread; return their results in the order of the calls.

    `reports` gets the result of a call that ends long before others. An exception that escapes from one of them is
    raised, and the results of the others are lost. The end of the process waits for none of them.
    """

    def run(index: int) -> Any:
        target, args = calls[index]
        result = target(*args)
        if reports:
            reports.note(index, result)
        return result

    if reports:
        reports.begin()
    running = [_threads(os.getpid()).submit(run, index) for index in range(1, len(calls))]
    try:
        first = run(0)
        return [first, *(each.result() for each in running)]
    except Exception:
        wait(running)
        raise
    finally:
        if reports:
            reports.end()


@functools.cache
def _threads(_pid: int) -> ThreadPoolExecutor:
    """Return the threads of a process, which a forked child does not have."""
    return ThreadPoolExecutor(MOST - 1, thread_name_prefix="together")
