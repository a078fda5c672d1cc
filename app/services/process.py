"""Detached processes that are known by the folder they run in, whatever became of their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

#: Environment variable that names the folder of the services that a process belongs to.
MARK = "PERENNIAL_SERVICES"
#: Children of this very process; kept so that they can be reaped, and so that no warning says that they were forgotten.
_children: list[subprocess.Popen[bytes]] = []


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


def running(directory: Path, programs: Collection[str]) -> list[int]:
    """Return the ids of this user's processes called one of `programs` that run in `directory` or were started for it.

    The kernel is asked each time, so a process id that was given away meanwhile is never mistaken for ours.
    """
    reap()
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return sorted(pid for pid in pids if _is_ours(pid, directory, programs))


def _is_ours(pid: int, directory: Path, programs: Collection[str]) -> bool:
    process = Path(f"/proc/{pid}")
    try:
        if process.stat().st_uid != os.getuid() or (process / "comm").read_text().strip() not in programs:
            return False
        return _runs_in(process, directory) or _was_started_for(process, directory)
    except OSError:
        return False


def _runs_in(process: Path, directory: Path) -> bool:
    cwd = process / "cwd"
    # The second case: the folder was deleted under its running process.
    return cwd.samefile(directory) if cwd.exists() else str(cwd.readlink()) == f"{directory} (deleted)"


def _was_started_for(process: Path, directory: Path) -> bool:
    # A node that misses its port mapper starts one itself, as a daemon in the root folder. The same environment in
    # another root, that is in a container, is somebody else's.
    mark = os.fsencode(f"{MARK}={directory.parent}")
    return mark in (process / "environ").read_bytes().split(b"\0") and (process / "root").samefile("/")


def stop(directory: Path, programs: Collection[str], *, grace: float) -> None:
    """End the processes that `running` finds: SIGTERM, then after `grace` seconds SIGKILL."""
    for signal_, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        for pid in running(directory, programs):
            with suppress(ProcessLookupError):
                os.kill(pid, signal_)
        if wait_until(lambda: not running(directory, programs), patience):
            break
    reap()


def reap() -> None:
    """Collect the children of this process that have ended."""
    _children[:] = [child for child in _children if child.poll() is None]


def wait_until(condition: Callable[[], bool], timeout: float, *, every: float = 0.05) -> bool:
    """Ask `condition` every `every` seconds for up to `timeout` seconds; return whether it came true."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True


def tail(log: Path, lines: int = 12) -> str:
    """Return the last `lines` lines of `log`, or an empty string where there is none."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
