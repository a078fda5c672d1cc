"""A real worker process, as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from config.settings import ROOT
from tests.support.forked import Forked
from tests.support.waiting import eventually

#: What a worker that is given no queues of its own takes the tasks of.
_TASKS = ("site.index", "site.crawl", "site.page", "site.timer", "site.tick", "site.pack")


class Worker:
    """One `celery worker`, its log in a file that is called as it is."""

    def __init__(self, process: Forked | subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.name = log.stem
        self._log = log

    @property
    def log(self) -> str:
        """What it printed so far."""
        return self._log.read_text(errors="replace")

    def ready(self) -> bool:
        """Return whether it takes messages; fails where it ended instead."""
        ended = self.process.poll()
        assert ended is None, f"{self.name} ended with {ended}:\n{self.log[-4_000:]}"
        return " ready." in self.log

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

    def leave(self) -> None:
        """SIGTERM it; it must end by itself, and well. Of one that hangs, the error shows where."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        if self.process.poll() is None:
            processes = [(child.pid, child.status()) for child in self.children()]
            # On SIGUSR1 Celery prints the stacks of all threads.
            self.process.send_signal(signal.SIGUSR1)
            eventually(lambda: "LOCAL VARIABLES" in self.log, "its stacks are printed")
            raise AssertionError(f"{self.name} does not end; its processes: {processes}\n{self.log[-8_000:]}")
        assert self.process.poll() == 0, self.log[-4_000:]


def start(
    environment: Mapping[str, str],
    log: Path,
    *,
    app: str = "app",
    queues: Sequence[str] = _TASKS,
    concurrency: int = 2,
    options: Sequence[str] = (),
    folder: Path = ROOT,
) -> Worker:
    """Start a worker; it is not ready yet, and runs until it is stopped."""
    command = ["celery", "-A", app, "worker", "--without-gossip", "--without-mingle"]
    command += [f"--hostname={log.stem}@%h", f"--queues={','.join(queues)}", f"--concurrency={concurrency}"]
    return start_module(environment, log, *command, *options, folder=folder)


def start_module(environment: Mapping[str, str], log: Path, *command: str, folder: Path = ROOT) -> Worker:
    """Start `python -m` with a module and its arguments; it is not ready yet."""
    own = {**os.environ, **environment}
    log.touch()
    if folder == ROOT:
        return Worker(Forked(*command, environment=own, stdout=log, stderr=log), log)
    # A program of another project must find nothing of this one in its memory.
    with log.open("ab") as output:
        words = [sys.executable, "-m", *command]
        process = subprocess.Popen(words, cwd=folder, env=own, stdout=output, stderr=output, start_new_session=True)
    return Worker(process, log)


@contextmanager
def worker(
    environment: Mapping[str, str],
    log: Path,
    *,
    app: str = "app",
    queues: Sequence[str] = _TASKS,
    concurrency: int = 2,
    options: Sequence[str] = (),
    folder: Path = ROOT,
) -> Iterator[Worker]:
    """Run a worker for the block; it is ready when the block begins, and gone when it ends."""
    running = start(environment, log, app=app, queues=queues, concurrency=concurrency, options=options, folder=folder)
    try:
        eventually(running.ready, "the worker is ready", seconds=60)
        yield running
    finally:
        if running.process.poll() is None:
            running.process.send_signal(signal.SIGTERM)
            try:
                running.process.wait(20)
            except subprocess.TimeoutExpired:
                running.kill()
