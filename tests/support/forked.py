"""Run a program of the project as `python -m` does, in a fork of a process that has imported its modules.

Imports are most of what it costs to start a program. The tests of the demos, of `perennial up` and of the documents
start the same programs as a user does.
"""

from __future__ import annotations

import gc
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from pkgutil import walk_packages

import app
from config.settings import ROOT

#: What Celery and kombu import when a worker starts.
_CELERY = ("bin.celery", "apps.worker", "concurrency.prefork", "worker.consumer")
#: Modules that are not imported before the first fork: this one reads the settings, and the others are run by `-m`.
_NOT_PRELOADED = {"app.celery", "app.cli.main", "app.messages.art_event_reader"}


class Forked:
    """A running program, with the part of `subprocess.Popen` that tests use."""

    def __init__(
        self, *command: str, environment: Mapping[str, str], stdout: Path, stderr: Path, folder: Path = ROOT
    ) -> None:
        """Start the module `command[0]` with the other words as arguments; its output is appended to the files."""
        arguments = (command, dict(environment), str(stdout), str(stderr), str(folder))
        self._process = context().Process(target=_run, args=arguments)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status; raises `subprocess.TimeoutExpired`."""
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM, unless the program has ended."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless the program has ended."""
        self.send_signal(signal.SIGKILL)


@cache
def context() -> ForkServerContext:
    """Return what starts processes as forks of one that has imported the modules of the project."""
    context = get_context("forkserver")
    ours = (module.name for module in walk_packages(app.__path__, "app.") if not module.name.endswith(".__main__"))
    context.set_forkserver_preload(
        [*(f"celery.{name}" for name in _CELERY), "kombu.transport.pyamqp", *sorted({*ours} - _NOT_PRELOADED)]
    )
    return context


def _run(command: tuple[str, ...], environment: dict[str, str], stdout: str, stderr: str, folder: str) -> None:
    os.setsid()
    # The collector would walk the imported objects again and again, and so copy their memory.
    gc.freeze()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for path, descriptor in ((stdout, 1), (stderr, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.path.insert(0, folder)
    sys.argv = list(command)
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)
