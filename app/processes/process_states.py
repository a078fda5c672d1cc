"""The processes of `perennial up` as a file describes them, and the identity of a process beyond its reusable id."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from app.machine import write_private


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process: the kernel reuses `pid`, but never with the same start time, in clock ticks since boot."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One process of the Procfile: `id` while it runs, `exit_code` of its last end, `crashes` in a row."""

    name: str
    state: Literal["running", "restarting", "down", "stopped"]
    id: ProcessId | None = None
    exit_code: int | None = None
    crashes: int = 0


@dataclass(frozen=True, slots=True)
class UpState:
    """The process of `perennial up` and the processes that it runs."""

    supervisor: ProcessId | None
    processes: tuple[ProcessState, ...] = ()


def identify(pid: int) -> ProcessId | None:
    """Return the identity of a process that runs now, or None. Without /proc every start time is 0."""
    if not Path("/proc/self/stat").exists():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        return ProcessId(pid, 0)
    try:
        # The second field is the program's name in parentheses, which may contain spaces: proc_pid_stat(5).
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, started = fields[0], int(fields[19])
    return None if state in "ZX" else ProcessId(pid, started)


def is_running(process: ProcessId) -> bool:
    """Return whether this process runs: another one with the same id does not count."""
    return identify(process.pid) == process


def send_signal(process: ProcessId, number: signal.Signals, *, group: bool = False) -> None:
    """Signal a process if it still runs, with `group` all processes of the group that it leads."""
    if is_running(process):
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(process.pid, number)


def save(data_dir: Path, state: UpState) -> None:
    """Write the state atomically."""
    write_private(_file(data_dir), json.dumps(asdict(state), indent=1) + "\n")


def load(data_dir: Path) -> UpState:
    """Return the state that was saved last, which may be of a process that was killed; an empty one without a file."""
    try:
        kept = json.loads(_file(data_dir).read_text())
        processes = (
            ProcessState(**{**each, "id": ProcessId(**each["id"]) if each["id"] else None})
            for each in kept["processes"]
        )
        return UpState(ProcessId(**kept["supervisor"]) if kept["supervisor"] else None, tuple(processes))
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return UpState(None)


def current_states(data_dir: Path) -> Sequence[ProcessState]:
    """Return the states of the processes of `perennial up`; an empty sequence if it does not run."""
    state = load(data_dir)
    return state.processes if state.supervisor and is_running(state.supervisor) else ()


def _file(data_dir: Path) -> Path:
    return data_dir / "up.json"
