"""Processors kept awake for a benchmark: one idle-priority process each, which ends with the benchmark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from benchmarks.modes import kept_awake
from config.settings import ROOT
from tests.support.waiting import eventually

pytestmark = pytest.mark.unit


def test_each_processor_has_one_idle_priority_process_during_the_block() -> None:
    # Other tests of this process may have children of their own.
    before = set(psutil.Process().children())
    with kept_awake():
        busy = set(psutil.Process().children()) - before
        assert sorted(process.cpu_affinity() or [] for process in busy) == [
            [n] for n in sorted(os.sched_getaffinity(0))
        ]
        assert {os.sched_getscheduler(process.pid) for process in busy} == {os.SCHED_IDLE}
    assert not set(psutil.Process().children()) - before


def test_the_processes_end_when_the_benchmark_is_killed() -> None:
    script = "from benchmarks.modes import kept_awake\nwith kept_awake():\n    print(flush=True)\n    input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as measuring:
        assert measuring.stdout is not None
        measuring.stdout.readline()
        busy = psutil.Process(measuring.pid).children()
        assert busy
        measuring.send_signal(signal.SIGKILL)
    eventually(lambda: not any(map(is_at_work, busy)), "no processor is kept busy")


def is_at_work(process: psutil.Process) -> bool:
    try:
        # In a container without an init process, an ended orphan remains as a zombie.
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
