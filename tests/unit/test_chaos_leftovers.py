"""`make chaos` leaves no process running, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from config.settings import ROOT
from tests.chaos.leftovers import marked_processes, none_left
from tests.support.waiting import eventually

pytestmark = pytest.mark.unit

#: A run that starts a process of its own, suspends it, and waits.
RUN = """
import os, signal, subprocess, sys
from pathlib import Path
from tests.chaos.leftovers import none_left
with none_left(Path(sys.argv[1]), {"MARK": sys.argv[1]}):
    sleep = subprocess.Popen(["sleep", "600"], env={"MARK": sys.argv[1]}, start_new_session=True)
    os.kill(sleep.pid, signal.SIGSTOP)
    print("runs", flush=True)
    sys.stdin.read()
"""


def test_nothing_runs_after_a_run_was_killed(tmp_path: Path) -> None:
    marks = {"MARK": str(tmp_path)}
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"runs\n"
        assert [each.name() for each in marked_processes(marks)] == ["sleep"]
        run.send_signal(signal.SIGKILL)
    eventually(lambda: not marked_processes(marks), "the process of the run is gone", seconds=60)


def test_nothing_of_a_run_is_left_when_its_block_ends(tmp_path: Path) -> None:
    marks = {"MARK": str(tmp_path)}
    with none_left(tmp_path, marks):
        sleep = subprocess.Popen(["sleep", "600"], env=marks)
        assert [each.pid for each in marked_processes(marks)] == [sleep.pid]
    assert sleep.wait(10) == -signal.SIGKILL
