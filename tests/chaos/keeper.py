"""Keeps the processes of the system running: each one that ends is started again, as a process manager does."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from config.settings import ROOT

#: Seconds between two checks for processes that ended.
PAUSE = 0.25
#: Seconds that a process has to end after SIGTERM.
END_TIMEOUT = 60


class Keeper:
    """Runs commands by name, each in a session of its own with a log file, and starts them again when they end."""

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        environment: Mapping[str, str],
        logs: Path,
        *,
        prefixes: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`prefixes` are words before the command of a process."""
        self._commands = commands
        self._environment = dict(environment)
        self._logs = logs
        self._prefixes: dict[str, Sequence[str]] = dict(prefixes or {})
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._expected: set[int] = set()
        self._closing, self._holding = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="keeper", daemon=True)
        #: Processes that ended although no method of this class ended them, with their exit status.
        self.ended: list[str] = []

    def start(self) -> None:
        """Start every process, and the thread that watches them."""
        for name in self._commands:
            self._start(name)
        self._thread.start()

    def close(self) -> None:
        """Kill every process, and start nothing again."""
        self._closing.set()
        self._thread.join()
        for name, process in self._processes.items():
            self._signal_group(name, signal.SIGKILL)
            process.wait()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the processes."""
        return tuple(self._commands)

    def log(self, name: str) -> str:
        """Return what a process has printed, also before it was started again."""
        return (self._logs / f"{name}.log").read_text(errors="replace")

    def not_running(self) -> list[str]:
        """Return the names of the processes that do not run now."""
        return [name for name, process in self._processes.items() if process.poll() is not None]

    def children(self, name: str) -> list[psutil.Process]:
        """Return the child processes of a process."""
        try:
            return list(psutil.Process(self._processes[name].pid).children())
        except psutil.NoSuchProcess:
            return []

    def kill(self, name: str) -> None:
        """SIGKILL a process with its children."""
        self._expect_end(name)
        self._signal_group(name, signal.SIGKILL)

    def kill_all(self) -> None:
        """SIGKILL every process with its children; nothing is started again before `start_all`."""
        self._holding.set()
        for name in self.names:
            self.kill(name)

    def start_all(self) -> None:
        """Start what `kill_all` killed."""
        self._holding.clear()

    def suspend(self, name: str) -> None:
        """SIGSTOP a process with its children: it is there, and does nothing."""
        self._signal_group(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT a process with its children."""
        self._signal_group(name, signal.SIGCONT)

    def terminate(self, name: str) -> None:
        """SIGTERM a process alone, which lets a worker finish its running tasks."""
        self._expect_end(name)
        with suppress(ProcessLookupError):
            self._processes[name].terminate()

    def restart(self, name: str, *, prefix: Sequence[str] = ()) -> None:
        """Terminate a process and wait for its end; it is started again with words before its command."""
        process = self._processes[name]
        self._prefixes[name] = prefix
        self.terminate(name)
        process.wait(END_TIMEOUT)

    def _start(self, name: str) -> None:
        with (self._logs / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*self._prefixes.get(name, ()), *self._commands[name]],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _expect_end(self, name: str) -> None:
        self._expected.add(self._processes[name].pid)

    def _signal_group(self, name: str, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._processes[name].pid, number)

    def _watch(self) -> None:
        while not self._closing.wait(PAUSE):
            for name, process in [] if self._holding.is_set() else list(self._processes.items()):
                code = process.poll()
                if code is None:
                    continue
                if process.pid not in self._expected:
                    self.ended.append(f"{name} ended with {code}")
                self._start(name)
