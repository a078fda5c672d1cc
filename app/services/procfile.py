"""The Procfile's processes, run by `perennial up`: started together, printed with honcho's prefixes, stopped warm."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO

from honcho.colour import get_colours
from honcho.environ import parse_procfile
from honcho.printer import Message, Printer

from app.errors import ServicesError
from app.services.lifecycle import locked
from config.settings import ROOT, get_settings

#: The process that needs MUSICBRAINZ_URL: without it, its queues do not exist.
ART = "coverart"

#: The process that runs REPLICAS times, so that each copy of a pack has a searcher.
SEARCHER = "searcher"

#: Seconds that the processes have to stop before they are killed. A warm shutdown ends the task that is running.
KILL_WAIT = 20

#: Seconds between two checks for signals, for the end of `KILL_WAIT` and for the lock of `perennial up`.
POLL = 0.1

#: The name before the lines of the supervisor itself.
SYSTEM = "system"


def procfile() -> dict[str, str]:
    """Return the Procfile's commands by name, in its order; raises ServicesError if the file is missing."""
    path = ROOT / "Procfile"
    if not path.exists():
        raise ServicesError(f"{path}: no Procfile; run from a checkout")
    return dict(parse_procfile(path.read_text()).processes)


def formation(commands: Mapping[str, str], *, searchers: int) -> dict[str, str]:
    """Return the commands with `searchers` searchers, named as honcho names them: `searcher.1`, `searcher.2`."""
    numbered: dict[str, str] = {}
    for name, command in commands.items():
        names = [f"{name}.{number + 1}" for number in range(searchers)] if name == SEARCHER else [name]
        numbered |= dict.fromkeys(names, command)
    return numbered


def run() -> int:
    """Run the Procfile until a process ends or a signal comes; return the exit status.

    Cover art is left out without MUSICBRAINZ_URL; there are REPLICAS searchers.
    """
    settings = get_settings()
    left_out = set() if settings.art_exchanges else {ART}
    commands = {name: command for name, command in procfile().items() if name not in left_out}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"}
    return supervise(formation(commands, searchers=settings.replicas), env=environment)


def supervise(commands: Mapping[str, str], *, env: Mapping[str, str]) -> int:
    """Run simple shell commands, by name, until one ends or a signal comes; stop the others.

    Returns the exit status of the process that ended first, or 128 and the signal's number. SIGTERM goes to the
    leader of each process group alone: it would kill a worker's pool processes in the middle of a page. What has not
    ended after `KILL_WAIT` seconds is killed with its group.
    """
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))
    processes = _Processes(commands, env)
    status: int | None = None
    kill_at: float | None = None
    while processes.running:
        code = processes.next_event(POLL)
        if status is None and signals:
            status = 128 + signals[0]
            processes.say(f"{signal.Signals(signals[0]).name} received")
        elif status is None:
            status = code
        if status is not None and kill_at is None:
            kill_at = time.monotonic() + KILL_WAIT
            processes.terminate()
        if kill_at is not None and time.monotonic() > kill_at:
            kill_at = float("inf")
            processes.kill()
    return status or 0


class _Processes:
    """Processes that run side by side. One thread for each reads its output; the caller's thread prints."""

    def __init__(self, commands: Mapping[str, str], env: Mapping[str, str]) -> None:
        self._events: queue.Queue[Message] = queue.Queue()
        self._printer = Printer(sys.stdout, width=max(map(len, [*commands, SYSTEM])))
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        for (name, command), colour in zip(commands.items(), get_colours(), strict=False):
            # `exec`: the leader is the command itself, not a shell before it.
            self.running[name] = child = subprocess.Popen(  # noqa: S602 - a Procfile's commands are for a shell.
                f"exec {command}",
                shell=True,
                env=dict(env),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.say(f"{name} started (pid={child.pid})")
            threading.Thread(target=self._read, args=(name, child, colour), daemon=True).start()

    def say(self, text: str) -> None:
        """Print a line of the supervisor itself."""
        self._printer.write(Message("line", text, datetime.now(), SYSTEM, None))

    def next_event(self, timeout: float) -> int | None:
        """Print the next line, or return the exit code of a process that ended; None after `timeout` seconds."""
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            return None
        if event.type == "line":
            self._printer.write(event)
            return None
        del self.running[event.name]
        self.say(f"{event.name} stopped (rc={event.data})")
        return int(event.data)

    def terminate(self) -> None:
        """Send SIGTERM to the leader of each process that runs."""
        for name, child in self.running.items():
            self.say(f"sending SIGTERM to {name} (pid {child.pid})")
            child.terminate()

    def kill(self) -> None:
        """Send SIGKILL to the group of each process that runs."""
        for name, child in self.running.items():
            self.say(f"sending SIGKILL to {name} (pid {child.pid})")
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

    def _read(self, name: str, child: subprocess.Popen[bytes], colour: str) -> None:
        """Pass on each line of a process, and its exit code when its whole group has closed the output."""
        assert child.stdout is not None  # noqa: S101 - Popen was called with a pipe.
        for line in child.stdout:
            self._events.put(Message("line", line, datetime.now(), name, colour))
        self._events.put(Message("stop", child.wait(), datetime.now(), name, colour))


@contextmanager
def only_one(data_dir: Path) -> Iterator[None]:
    """Hold the lock of `perennial up` for the block; raises ServicesError while another process holds it.

    The lock's file contains the process id of its holder, for `stop`.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    with _lock_file(data_dir).open("a+") as file:
        if not locked(file):
            raise ServicesError(f"perennial up runs already, as process {_holder(file)}")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def stop(data_dir: Path) -> bool:
    """Stop the process of `perennial up` and wait for its end; return whether there was one.

    Raises ServicesError when it does not end in time.
    """
    if not _lock_file(data_dir).exists():
        return False
    with _lock_file(data_dir).open("a+") as file:
        if locked(file):
            return False
        # The holder of a lock is alive, so its process id cannot have been given to another process.
        os.kill(_holder(file), signal.SIGTERM)
        deadline = time.monotonic() + KILL_WAIT + 10
        while not locked(file):
            if time.monotonic() > deadline:
                raise ServicesError(f"process {_holder(file)} (perennial up) does not end")
            time.sleep(POLL)
    return True


def _lock_file(data_dir: Path) -> Path:
    return data_dir / "up.lock"


def _holder(file: IO[str]) -> int:
    file.seek(0)
    return int(file.read() or 0)
