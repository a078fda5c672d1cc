"""SIGKILL for a private service."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil


def kill(program: str, folder: Path) -> None:
    """SIGKILL the service of this name that works below the folder."""
    found = [
        process
        for process in psutil.process_iter(["name", "cmdline", "cwd"])
        if process.info["name"] == program and str(folder) in f"{process.info['cmdline']} {process.info['cwd']}"
    ]
    assert found, f"no {program} runs in {folder}"
    for process in found:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
