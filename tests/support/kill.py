"""SIGKILL for private services."""

from __future__ import annotations

from pathlib import Path

import psutil

from app.private_services.service import reap
from config.settings import Settings


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


def discard(settings: Settings) -> None:
    """SIGKILL the private services of a test after its last use: a RabbitMQ takes seven seconds to stop."""
    folder = settings.services_file.parent
    for program in ("beam.smp", "epmd", "redis-server"):
        for process in service_processes(program, folder):
            process.kill()
            process.wait(10)
    reap()
