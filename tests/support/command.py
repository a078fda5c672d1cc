"""`perennial` as a user runs it, with its exit status and output."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from config.settings import ROOT
from tests.support.forked import Forked


def perennial(environment: Mapping[str, str], *arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run `perennial` with these arguments in a folder, to its end."""
    with tempfile.TemporaryDirectory() as printed:
        out, err = Path(printed, "out"), Path(printed, "err")
        process = Forked("app.cli.main", *arguments, environment=environment, stdout=out, stderr=err, folder=folder)
        try:
            status = process.wait(60)
        finally:
            process.kill()
        return subprocess.CompletedProcess(["perennial", *arguments], status, out.read_text(), err.read_text())
