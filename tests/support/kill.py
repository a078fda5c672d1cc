"""SIGKILL for a private service."""

from __future__ import annotations

from pathlib import Path

import psutil


def service_processes(program: str, folder: Path) -> list[psutil.Process]:
    """Return the processes of the service of this name that works below the folder."""
    return [
        process
        for process in psutil.process_iter(["name", "cmdline", "cwd"])
        if process.info["name"] == program and str(folder) in f"{process.info['cmdline']} {process.info['cwd']}"
    ]


def kill(program: str, folder: Path) -> None:
    """SIGKILL the service of this name that works below the folder."""
    found = service_processes(program, folder)
    assert found, f"no {program} runs in {folder}"
    for process in found:
        process.kill()
        process.wait(10)
