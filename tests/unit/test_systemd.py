"""`perennial systemd`: the units are those of the Procfile, and systemd reads them without a warning."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.main import cli
from app.processes.procfile import left_out, procfile
from config.settings import Settings
from tests.support.programs import program

pytestmark = pytest.mark.unit

PROGRAMS = "my 100 % programs"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the units of programs in a folder with an unusual name into a folder."""
    (tmp_path / PROGRAMS).mkdir()
    for command in procfile().values():
        link = tmp_path / PROGRAMS / command.partition(" ")[0]
        if not link.exists():
            link.symlink_to(Path(sys.executable).parent / link.name)
    monkeypatch.setattr(sys, "executable", str(tmp_path / PROGRAMS / "python"))
    done = CliRunner().invoke(cli, ["systemd", "--directory", str(tmp_path / "units")])
    assert done.exit_code == 0, done.output
    assert set(done.output.split()) == {str(file) for file in (tmp_path / "units").iterdir()}
    return tmp_path / "units"


def test_each_process_that_the_settings_need_has_a_unit_with_its_command(folder: Path) -> None:
    commands = {}
    for file in folder.glob("*.service"):
        [line] = re.findall("^ExecStart=(.*)$", file.read_text(), re.MULTILINE)
        path, *options = shlex.split(line.replace("%%", "%"))
        assert Path(path).is_file()
        commands[file.stem.removeprefix("perennial-").removesuffix("@")] = [Path(path).name, *options]
    needed = {name: shlex.split(command) for name, command in procfile().items() if name not in left_out(Settings())}
    assert commands == needed


def test_the_target_starts_each_process_once_and_as_many_searchers_as_replicas(folder: Path) -> None:
    [wanted] = re.findall("^Wants=(.*)$", (folder / "perennial.target").read_text(), re.MULTILINE)
    units = wanted.split()
    assert [unit for unit in units if "@" in unit] == [
        f"perennial-searcher@{number + 1}.service" for number in range(Settings().replicas)
    ]
    others = {file.name for file in folder.glob("*.service") if "@" not in file.name}
    assert {unit for unit in units if "@" not in unit} == others


def test_a_machine_gets_the_units_of_its_own_processes_and_one_searcher(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["systemd", "worker", "searcher", "--directory", str(tmp_path)])
    assert done.exit_code == 0, done.output
    names = {"perennial.target", "perennial-worker.service", "perennial-searcher@.service"}
    assert {file.name for file in tmp_path.iterdir()} == names
    [wanted] = re.findall("^Wants=(.*)$", (tmp_path / "perennial.target").read_text(), re.MULTILINE)
    assert wanted.split() == ["perennial-worker.service", "perennial-searcher@1.service"]


def test_an_unknown_process_is_an_error_that_names_the_processes(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["systemd", "workers", "--directory", str(tmp_path)])
    assert str(done.exception).startswith("workers: no process of the Procfile, which are worker, ")


def test_systemd_reads_the_units_without_a_warning(folder: Path) -> None:
    command = [program("systemd-analyze", "systemd"), "verify", "--man=no", *map(str, folder.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "perennial" in line]) == (0, [])


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = CliRunner().invoke(cli, ["systemd", "--directory", str(tmp_path / "file")])
    assert f"{tmp_path}/file/perennial.target not written" in str(done.exception)
