"""When a crashed process is restarted, and how the processes of `perennial up` are described."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.main import cli
from app.services.process_states import ProcessId, ProcessState, UpState, identify, load, save
from app.services.supervisor import RESTARTS, restart_wait
from config.settings import get_settings

pytestmark = pytest.mark.unit


def test_each_restart_waits_twice_as_long_and_the_sixth_crash_in_a_row_is_the_last() -> None:
    assert [restart_wait(crashes) for crashes in range(1, RESTARTS + 2)] == [1, 2, 4, 8, 16, None]


def test_states_are_read_as_they_were_saved_and_a_damaged_file_is_no_state(tmp_path: Path) -> None:
    state = UpState(ProcessId(1, 2), (ProcessState("a", "running", ProcessId(3, 4), -9, 1), ProcessState("b", "down")))
    assert load(tmp_path) == UpState(None)
    save(tmp_path, state)
    assert load(tmp_path) == state
    (tmp_path / "up.json").write_text('{"processes": [{"name": "a"}]}')
    assert load(tmp_path) == UpState(None)


def test_status_without_a_domain_shows_the_processes_and_fails_for_one_that_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERENNIAL_DATA_DIR", str(tmp_path))
    get_settings.cache_clear()
    none = CliRunner().invoke(cli, ["status"])
    assert (none.exit_code, none.output) == (1, "perennial up does not run here\n")
    running = ProcessState("web", "running", ProcessId(os.getpid(), 1))
    save(tmp_path, UpState(identify(os.getpid()), (running,)))
    assert CliRunner().invoke(cli, ["status"]).exit_code == 0
    down = ProcessState("worker", "down", None, 1, 6)
    save(tmp_path, UpState(identify(os.getpid()), (running, down)))
    shown = CliRunner().invoke(cli, ["status"])
    monkeypatch.undo()
    get_settings.cache_clear()
    assert shown.exit_code == 1
    assert shown.output.splitlines() == [
        f"web          running    pid {os.getpid()}",
        "worker       down       6 crashes in a row, exit code 1",
    ]
