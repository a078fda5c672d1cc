"""Modes of the search benchmark: concurrent queries, pauses, and processors kept awake or not."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.processes import line_process


@dataclass(frozen=True, slots=True)
class Mode:
    """Each of `threads` waits `pause` seconds before a query. With `awake`, no processor goes to sleep."""

    name: str
    threads: int = 1
    pause: float = 0.0
    awake: bool = False


AWAKE = Mode("one at a time, awake", awake=True)
ALONE = Mode("one at a time")
RESTED = Mode("one at a time, after a rest", pause=0.01)
CROWD = Mode("8 at once", threads=8)
MODES = (AWAKE, ALONE, RESTED, CROWD)


@contextmanager
def kept_awake() -> Iterator[None]:
    """Run an idle-priority process on each processor during the block, so that no processor goes to sleep.

    A processor that wakes up has cold caches and a low clock rate. Without this, a program that mostly waits is
    measured with those.
    """
    with ExitStack() as stack:
        for processor in sorted(os.sched_getaffinity(0)):
            process = line_process(f"processor {processor}", "benchmarks.modes", str(processor))
            stack.enter_context(process).ask("stay awake")
        yield


def _keep_busy(processor: int) -> None:
    """Keep a processor busy at the idle priority of sched(7), until the parent process ends."""
    parent = os.getppid()
    os.sched_setaffinity(0, {processor})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    print(sys.stdin.readline(), end="", flush=True)
    while os.getppid() == parent:
        for _ in range(10_000):
            pass


if __name__ == "__main__":
    _keep_busy(int(sys.argv[1]))
