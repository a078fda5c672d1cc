"""One private service: a detached process, found again by its folder after its parent has ended."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.errors import ServicesError
from app.machine import tail, wait_until

#: Environment variable that names the folder of the services that a process belongs to.
MARK = "PERENNIAL_SERVICES"

#: Children of this process, so that they can be reaped.
_children: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True)
class Service:
    """How to run one service. `answers` returns whether it accepts our credentials; times are in seconds.

    `before_stop` is called with the id of each process that is about to be stopped.
    """

    name: str
    directory: Path
    programs: frozenset[str]
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    ports: Sequence[str]
    answers: Callable[[], bool]
    start_timeout: float
    stop_timeout: float
    before_stop: Callable[[int], None] = lambda _pid: None

    def pids(self) -> list[int]:
        """Return the ids of its running processes: at most one."""
        return running(self.directory, self.programs)

    def is_up(self) -> bool:
        """Return whether its process runs and answers."""
        return bool(self.pids()) and self.answers()

    def start(self) -> None:
        """Start it unless it runs and answers.

        Raises ServicesError with the last lines of its log where it ended or did not answer in time.
        """
        settled = self.pids() and wait_until(lambda: self.answers() or not self.pids(), self.start_timeout / 4)
        if settled and self.pids():
            return
        self.stop()
        child = start(self.argv, directory=self.directory, env=self.env, log=self.log)
        wait_until(lambda: child.poll() is not None or self.answers(), self.start_timeout)
        code = child.poll()
        if code is None and self.answers():
            return
        self.stop()
        reason = f"did not answer in {self.start_timeout:.0f} s" if code is None else f"ended with exit code {code}"
        raise ServicesError(
            f"{self.name} {reason}; its log {self.log} ends with:\n{tail(self.log)}\n"
            "Use `perennial down` and try again, or set BROKER_URL and REDIS_URL."
        )

    def stop(self) -> None:
        """Stop its processes and wait for their end: SIGTERM, and SIGKILL after `stop_timeout` seconds."""
        for pid in self.pids():
            self.before_stop(pid)
        for signal_, patience in ((signal.SIGTERM, self.stop_timeout), (signal.SIGKILL, 5.0)):
            for pid in self.pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal_)
            if wait_until(lambda: not self.pids(), patience):
                break
        reap()


def start(argv: Sequence[str], *, directory: Path, env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start `argv` in `directory` in a session of its own, its output appended to `log`."""
    with log.open("ab") as output:
        child = subprocess.Popen(  # noqa: S603 - the command is ours.
            argv,
            cwd=directory,
            env={**env, MARK: str(directory.parent)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _children.append(child)
    return child


def environment(home: Path) -> dict[str, str]:
    """Return the variables that every service gets: nothing else of the user's environment."""
    return {"HOME": str(home), "PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}


def running(directory: Path, programs: Collection[str]) -> list[int]:
    """Return the ids of this user's processes of these programs that run in `directory` or were started for it.

    Reads /proc each time, so a process id that the kernel has reused is never returned.
    """
    reap()
    found, mark = [], os.fsencode(f"{MARK}={directory.parent}")
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # It has ended meanwhile, or belongs to another user.
            if process.stat().st_uid != os.getuid() or (process / "comm").read_text().strip() not in programs:
                continue
            cwd = process / "cwd"
            # A process outlives its folder if the folder is deleted.
            is_here = cwd.samefile(directory) if cwd.exists() else str(cwd.readlink()) == f"{directory} (deleted)"
            # A node without a port mapper starts one itself, as a daemon in the root folder. The root is compared,
            # since a container may have the same environment.
            if is_here or (
                mark in (process / "environ").read_bytes().split(b"\0") and (process / "root").samefile("/")
            ):
                found.append(int(process.name))
    return sorted(found)


def reap() -> None:
    """Collect the children of this process that have ended."""
    _children[:] = [child for child in _children if child.poll() is None]


@atexit.register
def _leave() -> None:
    """Let services outlive this process: Python would warn of each child that it has not seen end."""
    for child in _children:
        child.returncode = child.poll() or 0
