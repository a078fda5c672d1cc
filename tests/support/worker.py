"""A real worker process, as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from config.settings import ROOT
from tests.support.waiting import eventually


class Worker:
    """One `celery worker`, its log in a file."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        """What it printed so far."""
        return self._log.read_text(errors="replace")

    def children(self) -> list[psutil.Process]:
        """Return its pool processes."""
        return list(psutil.Process(self.process.pid).children())

    def kill(self) -> None:
        """SIGKILL the whole worker, parent first, so that no child is replaced or settled."""
        children = self.children()
        self.process.send_signal(signal.SIGKILL)
        for child in children:
            child.kill()
        self.process.wait()


@contextmanager
def worker(
    environment: Mapping[str, str],
    log: Path,
    *,
    app: str = "app",
    queues: Sequence[str] = ("site.index", "site.crawl", "site.timer", "site.tick", "site.pack"),
    concurrency: int = 2,
    options: Sequence[str] = (),
) -> Iterator[Worker]:
    """Run a worker for the block; it is ready when the block begins, and gone when it ends."""
    command = [sys.executable, "-m", "celery", "-A", app, "worker", "--without-gossip", "--without-mingle"]
    command += [f"--hostname={log.stem}@%h", f"--queues={','.join(queues)}", f"--concurrency={concurrency}"]
    command += options
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environment}, stdout=output, stderr=output, start_new_session=True
        )
    running = Worker(process, log)
    try:
        eventually(lambda: _ready(running), "the worker is ready", seconds=60)
        yield running
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                running.kill()


def _ready(running: Worker) -> bool:
    if running.process.poll() is not None:
        raise AssertionError(f"the worker ended with {running.process.returncode}:\n{running.log[-4_000:]}")
    return " ready." in running.log
