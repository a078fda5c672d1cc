"""The `perennial` command before any subcommand: its version, and what it loads to begin."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from app.cli.main import cli

pytestmark = pytest.mark.unit


def test_it_tells_its_version() -> None:
    done = CliRunner().invoke(cli, ["--version"])
    assert (done.exit_code, done.output) == (0, f"perennial {version('perennial')}\n")


def test_it_begins_without_what_few_need() -> None:
    # boto3 alone would take a quarter of a second, be the store a folder or not.
    script = (
        "import sys, app.cli.main; print([name for name in ('boto3', 'fastapi', 'uvicorn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
