"""Ways to ask many queries: how many at a time, how often, and on processors that are kept awake or fall asleep."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.errors import BenchmarkError
from config.settings import ROOT


@dataclass(frozen=True, slots=True)
class Mode:
    """So many `threads` ask, each one `pause` seconds after it was answered; `awake`: no processor falls asleep."""

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
    """Let no processor fall asleep during the block: on each a process runs that gives way to all others at once.

    A program that waits for others for most of its time is otherwise measured with the caches, the clock and the place
    on its host that a sleeping processor is given back, however little it does itself.
    """
    with ExitStack() as stack:
        for processor in sorted(os.sched_getaffinity(0)):
            stack.enter_context(_busy(processor))
        yield


@contextmanager
def _busy(processor: int) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.modes", str(processor)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None or process.stdout.readline() != "awake\n":
            raise BenchmarkError(f"processor {processor} cannot be kept awake")
        yield
    finally:
        process.kill()
        process.communicate()


def _keep_busy(processor: int) -> None:
    """Keep a processor busy, as idle as sched(7) allows, for as long as who started this process lives."""
    parent = os.getppid()
    os.sched_setaffinity(0, {processor})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    print("awake", flush=True)
    while os.getppid() == parent:
        for _ in range(10_000):
            pass


if __name__ == "__main__":
    _keep_busy(int(sys.argv[1]))
