"""Processes that run together: a crash is restarted, SIGTERM goes to each leader, and what does not end is killed."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from app.errors import ServicesError
from app.machine import try_lock
from app.processes import process_states, procfile
from app.processes.process_states import ProcessId, ProcessState, UpState, identify
from config.settings import ROOT
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

SCRIPT = """
import json, os, sys
from pathlib import Path
from app.processes import process_states, supervisor
supervisor.KILL_WAIT, supervisor.FIRST_WAIT = float(sys.argv[3]), 0.05
commands, data_dir = json.loads(sys.argv[1]), Path(sys.argv[2])
ourselves = process_states.identify(os.getpid())
save = lambda states: process_states.save(data_dir, process_states.UpState(ourselves, tuple(states)))
sys.exit(supervisor.ProcessSupervisor(commands, os.environ, changed=save).run())
"""
#: As a worker with a pool: on SIGTERM it waits for its child, which would die of that signal.
WORKER = 'sh -c \'trap "wait $!; echo all done" TERM; sh -c "sleep 1; echo page done" & echo ready; wait; wait\''
STUBBORN = "sh -c 'trap \"\" TERM; echo ready; while true; do sleep 1; done'"


def run(out: Path, *, kill_wait: float = 20.0, **commands: str) -> subprocess.Popen[bytes]:
    """Start a supervisor of commands, which kills what does not end within `kill_wait` seconds."""
    with out.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT, json.dumps(commands), str(out.parent), str(kill_wait)],
            cwd=ROOT,
            stdout=output,
            stderr=output,
        )


def states(folder: Path) -> dict[str, ProcessState]:
    return {each.name: each for each in process_states.current_states(folder)}


def test_a_pool_process_finishes_its_page_when_the_worker_is_terminated(tmp_path: Path) -> None:
    with run(tmp_path / "out", worker=WORKER) as process:
        eventually(lambda: "| ready" in (tmp_path / "out").read_text(), "the worker runs")
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    out = (tmp_path / "out").read_text()
    assert "| page done" in out
    assert "| all done" in out


def test_a_signal_during_the_start_leaves_no_process(tmp_path: Path) -> None:
    names: dict[str, Any] = {f"p{number}": "sleep 300" for number in range(5)}
    with run(tmp_path / "out", **names) as process:
        eventually(lambda: psutil.Process(process.pid).children(), "the first process starts")
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    out = (tmp_path / "out").read_text()
    assert "Traceback" not in out
    assert out.count("stopped (rc=-15)") == 5


def test_a_terminal_that_is_closed_ends_all_processes_unless_nohup_keeps_them(tmp_path: Path) -> None:
    former = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # The tests may run below nohup themselves.
    try:
        with run(tmp_path / "out", sleeper="sleep 300") as process:
            [sleeper] = eventually(lambda: psutil.Process(process.pid).children(), "the process starts")
            eventually(lambda: "started" in (tmp_path / "out").read_text(), "it is said")
            process.send_signal(signal.SIGHUP)
            assert process.wait(60) == 128 + signal.SIGHUP
        assert not sleeper.is_running()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with run(tmp_path / "out", sleeper="sleep 300") as process:
            eventually(lambda: "started" in (tmp_path / "out").read_text(), "the process starts")
            process.send_signal(signal.SIGHUP)
            process.terminate()
            assert process.wait(60) == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGHUP, former)


def test_output_that_nobody_reads_any_more_leaves_no_process(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    command = [sys.executable, "-c", SCRIPT, json.dumps({"sleeper": "sleep 300"}), str(tmp_path), "20"]
    with (tmp_path / "errors").open("wb") as errors:
        process = subprocess.Popen(command, cwd=ROOT, stdout=writer, stderr=errors)
    os.close(writer)
    with process:
        [sleeper] = eventually(lambda: psutil.Process(process.pid).children(), "the process starts")
        assert b"sleeper started" in os.read(reader, 1_000)
        # As in `perennial up | tee log` after Ctrl-C, which ends tee first, or where a terminal is closed.
        os.close(reader)
        process.terminate()
        process.wait(60)
    assert not sleeper.is_running()
    assert "Traceback" not in (tmp_path / "errors").read_text()


def test_a_data_folder_that_cannot_be_made_or_written_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ServicesError, match="cannot be made"), procfile.only_one(Path("/proc/nowhere")):
        pass
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)  # Root may write everywhere but on a read-only disk.
    read_only = (
        "cannot be written: it is read-only, or belongs to another user; name another folder by PERENNIAL_DATA_DIR"
    )
    with pytest.raises(ServicesError, match=read_only), procfile.only_one(tmp_path):
        pass


def test_a_process_that_crashed_once_is_restarted_and_the_others_go_on(tmp_path: Path) -> None:
    out, flag = tmp_path / "out", tmp_path / "crashed"
    crashes_once = f"sh -c 'test -e {flag} && exec sleep 300; touch {flag}; echo my last words; exit 3'"
    with run(out, once=crashes_once, other="sleep 300") as process:
        eventually(lambda: out.read_text().count("once started") == 2, "it is restarted")
        lines = out.read_text()
        assert lines.index("my last words") < lines.index("once stopped (rc=3); restart 1 of 5 in 0.05 s")
        assert lines.count("other started") == 1
        eventually(lambda: states(tmp_path)["once"].state == "running", "the state is saved")
        assert (states(tmp_path)["once"].crashes, states(tmp_path)["once"].exit_code) == (1, 3)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM


def test_a_process_that_crashes_again_and_again_stays_down_and_the_exit_code_tells(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with run(out, wrong="sh -c 'exit 3'", other="sleep 300") as process:
        eventually(lambda: "it stays down after 6 crashes in a row" in out.read_text(), "it is given up")
        assert out.read_text().count("wrong started") == 6
        eventually(lambda: states(tmp_path)["wrong"].state == "down", "the state is saved")
        assert states(tmp_path)["other"].state == "running"
        process.terminate()
        assert process.wait(60) == 3


def test_when_every_process_stays_down_the_supervisor_ends_with_the_first_ones_exit_code(tmp_path: Path) -> None:
    with run(tmp_path / "out", killed="sh -c 'kill -9 $$'") as process:
        assert process.wait(60) == 128 + signal.SIGKILL
    assert states(tmp_path) == {}


def test_what_a_killed_leader_leaves_in_its_group_is_killed_before_the_restart(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with run(out, worker="sh -c 'sleep 300 & echo child $!; wait'") as process:
        eventually(lambda: "| child" in out.read_text(), "its child runs")
        child = int(out.read_text().partition("| child ")[2].split()[0])
        leader = states(tmp_path)["worker"].id
        assert leader is not None
        os.kill(leader.pid, signal.SIGKILL)
        eventually(lambda: out.read_text().count("worker started") == 2, "it is restarted")
        assert identify(child) is None
        process.terminate()
        process.wait(60)


def test_a_stubborn_process_is_killed(tmp_path: Path) -> None:
    with run(tmp_path / "out", kill_wait=1, stubborn=STUBBORN) as process:
        eventually(lambda: "| ready" in (tmp_path / "out").read_text(), "it runs")
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert "stubborn stopped (rc=-9)" in (tmp_path / "out").read_text()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that has nothing to do with this project, in a group of its own."""
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as process:
        yield process
        process.kill()


def test_down_does_not_signal_a_process_that_got_the_id_of_a_killed_up(
    tmp_path: Path, bystander: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfile, "KILL_WAIT", -9.5)
    now = identify(bystander.pid)
    assert now is not None
    process_states.save(tmp_path, UpState(ProcessId(now.pid, now.started - 1)))
    # As a second `perennial down` does for a moment.
    with (tmp_path / "up.lock").open("a+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ServicesError, match="does not end"):
            procfile.stop(tmp_path)
    assert bystander.poll() is None


def test_what_a_killed_up_left_is_stopped_and_a_reused_id_is_not(
    tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    with run(tmp_path / "out", left="sleep 300") as process:
        eventually(lambda: states(tmp_path).get("left"), "it runs")
        kept = states(tmp_path)["left"]
        assert kept.id is not None
        process.kill()
    assert identify(kept.id.pid) == kept.id
    stranger = ProcessState("stranger", "running", ProcessId(bystander.pid, 1))
    process_states.save(tmp_path, UpState(ProcessId(process.pid, 1), (kept, stranger)))
    with procfile.only_one(tmp_path) as left:
        assert [each.name for each in left] == ["left"]
    assert identify(kept.id.pid) is None
    assert bystander.poll() is None


def test_what_another_up_left_that_was_killed_just_now_is_stopped_too(
    tmp_path: Path, bystander: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = ProcessState("left", "running", identify(bystander.pid))

    def locked_later(file: IO[str]) -> bool:
        process_states.save(tmp_path, UpState(None, (left,)))
        return try_lock(file)

    monkeypatch.setattr(procfile, "try_lock", locked_later)
    with procfile.only_one(tmp_path) as stopped:
        assert stopped == [left]
    assert bystander.wait(10) == -signal.SIGTERM
