"""What a pool process does with several messages at once: the task of each runs in a thread of its own."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

#: Messages that one pool process runs at the same time.
MOST = 16

#: Messages that a worker prefetches for each process: those that run, and as many that are next.
PREFETCHED = 2 * MOST

#: Seconds that a message waits in the worker for its run. Then it is published again: the broker limits the time
#: without acknowledgement, and after a group that hangs each of its messages runs alone.
MAX_HELD = 150.0

#: A task's function in the pool, and its arguments.
TaskCall = tuple[Callable[..., Any], Sequence[Any]]


def run_together(calls: Sequence[TaskCall]) -> list[Any]:
    """Run calls at the same time, the first one in this thread; return their results in the order of the calls.

    An exception that escapes from one of them is raised, and the results of the others are lost. The end of the process
    waits for none of them.
    """
    (target, args), *others = calls
    running = [_threads(os.getpid()).submit(call, *given) for call, given in others]
    try:
        first = target(*args)
    except Exception:
        wait(running)
        raise
    return [first, *(each.result() for each in running)]


@functools.cache
def _threads(_pid: int) -> ThreadPoolExecutor:
    """Return the threads of a process, which a forked child does not have."""
    return ThreadPoolExecutor(MOST - 1, thread_name_prefix="together")
