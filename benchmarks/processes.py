"""Run a program during a block, which begins when the program is ready."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from app.services.service import tail, wait_until
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
            env=dict(environment),
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
