"""Run a program during a block: a service that is ready when the block begins, or a process that answers lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from app.machine import tail, wait_until
from benchmarks.errors import BenchmarkError
from config.settings import ROOT

#: Seconds to start, and to end after SIGTERM.
START_TIMEOUT, END_TIMEOUT = 60.0, 30.0


@contextmanager
def running(
    command: str, environment: Mapping[str, str], log: Path, *, ready: str = " ready."
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a shell command during the block, once its log contains `ready`; raises BenchmarkError if it never does."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            cwd=ROOT,
            # Celery's beat prints its banner without a flush.
            env={**environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        wait_until(lambda: process.poll() is not None or ready in log.read_text(errors="replace"), START_TIMEOUT)
        if process.poll() is not None or ready not in log.read_text(errors="replace"):
            raise BenchmarkError(f"{command}: did not start:\n{tail(log, 30)}")
        yield process
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_TIMEOUT)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@dataclass(frozen=True, slots=True)
class LineProcess:
    """A process that answers each line with a line."""

    name: str
    process: subprocess.Popen[str]

    def ask(self, line: str) -> str:
        """Send a line and return the reply; raises BenchmarkError if the process has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        if not (reply := self.process.stdout.readline()):
            raise BenchmarkError(f"the process {self.name!r} ended with {self.process.wait(10)}")
        return reply


@contextmanager
def line_process(
    name: str, module: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[LineProcess]:
    """Run a module that answers lines during the block; `name` is for errors and tables."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield LineProcess(name, process)
    finally:
        process.kill()
        process.communicate()
