"""SIGKILL for private services, and those that a test may kill and start again."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from app import private_services as private
from app.private_services.service import reap
from config.settings import Settings
from tests.support.waiting import eventually


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
        process.wait(60)


@dataclass(frozen=True, slots=True)
class Killable:
    """Services to be killed. `settings` are those of an application with a vhost and an empty Redis of its own."""

    settings: Settings
    _private: Settings

    def kill(self, program: str) -> None:
        """SIGKILL `beam.smp`, which is RabbitMQ, or `redis-server`."""
        kill(program, self._private.data_dir)

    def start(self) -> None:
        """Start what does not run, on its data."""
        private.up(self._private)

    def restart(self) -> None:
        """Stop both in order and start them again."""
        private.down(self._private)
        private.up(self._private)


def discard(settings: Settings) -> None:
    """SIGKILL the private services of a test after its last use: a RabbitMQ takes seven seconds to stop."""
    folder = settings.services_file.parent

    def found() -> list[psutil.Process]:
        return [each for program in ("beam.smp", "epmd", "redis-server") for each in service_processes(program, folder)]

    for process in found():
        with suppress(psutil.NoSuchProcess):
            process.kill()
    # Another process of the test run may be the parent of one, and collect it later.
    eventually(lambda: not found(), f"the services in {folder} have ended")
    reap()
