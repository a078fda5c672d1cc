"""Commands as a user runs them, with their exit status and output: as a process, or in this one."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.main import cli
from config.settings import ROOT, get_settings
from tests.support.forked import Forked


def perennial(environment: Mapping[str, str], *arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run `perennial` with these arguments in a folder, to its end."""
    return completed(environment, "app.cli.main", *arguments, folder=folder)


def completed(environment: Mapping[str, str], *command: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run the module `command[0]` with the other words as its arguments in a folder, to its end."""
    with tempfile.TemporaryDirectory() as printed:
        out, err = Path(printed, "out"), Path(printed, "err")
        process = Forked(*command, environment=environment, stdout=out, stderr=err, folder=folder)
        try:
            status = process.wait(60)
        finally:
            process.kill()
        return subprocess.CompletedProcess(command, status, out.read_text(), err.read_text())


def invoked(*arguments: str, exit_code: int = 0) -> str:
    """Run `perennial` in this process; return what it prints. Errors of the application are raised."""
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result.stdout


@contextmanager
def as_process_with(environment: Mapping[str, str]) -> Iterator[None]:
    """Let this process have the settings of an environment for the block."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        get_settings.cache_clear()
        try:
            yield
        finally:
            get_settings.cache_clear()
