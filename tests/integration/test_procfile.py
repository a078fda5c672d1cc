"""Processes that run together: SIGTERM goes to each leader, and what does not end is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from config.settings import ROOT
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

SCRIPT = """
import json, os, sys
from app.services import procfile
procfile.KILL_WAIT = 1
sys.exit(procfile.supervise(json.loads(sys.argv[1]), env=os.environ))
"""
#: As a worker with a pool: on SIGTERM it waits for its child, which would die of that signal.
WORKER = 'sh -c \'trap "wait $!; echo all done" TERM; sh -c "sleep 1; echo page done" & echo ready; wait; wait\''


def run(out: Path, **commands: str) -> subprocess.Popen[bytes]:
    with out.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT, json.dumps(commands)], cwd=ROOT, stdout=output, stderr=output
        )


def test_a_pool_process_finishes_its_page_when_the_worker_is_terminated(tmp_path: Path) -> None:
    with run(tmp_path / "out", worker=WORKER) as process:
        eventually(lambda: "| ready" in (tmp_path / "out").read_text(), "the worker runs")
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
    out = (tmp_path / "out").read_text()
    assert "| page done" in out
    assert "| all done" in out


def test_a_signal_during_the_start_leaves_no_process(tmp_path: Path) -> None:
    names = {f"p{number}": "sleep 300" for number in range(5)}
    with run(tmp_path / "out", **names) as process:
        eventually(lambda: psutil.Process(process.pid).children(), "the first process starts")
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
    out = (tmp_path / "out").read_text()
    assert "Traceback" not in out
    assert out.count("stopped (rc=-15)") == 5


def test_the_end_of_one_process_ends_all_and_a_stubborn_one_is_killed(tmp_path: Path) -> None:
    stubborn = "sh -c 'trap \"\" TERM; echo ready; while true; do sleep 1; done'"
    with run(tmp_path / "out", short="sh -c 'sleep 1; exit 3'", stubborn=stubborn) as process:
        assert process.wait(20) == 3
    assert "stubborn stopped (rc=-9)" in (tmp_path / "out").read_text()


def test_a_single_stubborn_process_is_killed(tmp_path: Path) -> None:
    stubborn = "sh -c 'trap \"\" TERM; echo ready; while true; do sleep 1; done'"
    with run(tmp_path / "out", stubborn=stubborn) as process:
        eventually(lambda: "| ready" in (tmp_path / "out").read_text(), "it runs")
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
    assert "stubborn stopped (rc=-9)" in (tmp_path / "out").read_text()
