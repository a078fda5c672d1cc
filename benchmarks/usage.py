"""CPU time of groups of processes, and of the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType

import psutil


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds by group of processes, and of the whole machine: busy and total."""

    groups: Mapping[str, float]
    busy: float
    total: float

    def since(self, before: Usage) -> Spent:
        """Return what was spent since `before`."""
        cpu = {name: seconds - before.groups[name] for name, seconds in self.groups.items()}
        # Services and contestants are children of this process.
        others = max(0.0, self.busy - before.busy - cpu["own"] - cpu["own children"])
        return Spent(cpu, others / (self.total - before.total))


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds by group of processes, and the share of the machine, 0 to 1, that other programs took."""

    cpu: Mapping[str, float]
    others: float


def usage(groups: Mapping[str, int] = MappingProxyType({})) -> Usage:
    """Return the usage of the processes with these ids, and of this one as `own`.

    The children of `x`, ended ones included, are `x children`.
    """
    seconds: dict[str, float] = {}
    for name, pid in {**groups, "own": os.getpid()}.items():
        root = psutil.Process(pid)
        times = root.cpu_times()
        seconds[name] = times.user + times.system
        seconds[f"{name} children"] = times.children_user + times.children_system + _children(root)
    machine = psutil.cpu_times()
    total = float(sum(machine[:8]))  # User time already includes guests.
    return Usage(seconds, total - machine.idle - machine.iowait, total)


def quiet_within(seconds: float) -> None:
    """Wait up to `seconds` for a second in which the machine is less than 10 % busy.

    Call it between runs, while the benchmark's own processes are idle.
    """
    deadline = time.monotonic() + seconds
    while psutil.cpu_percent(interval=1.0) >= 10.0 and time.monotonic() <= deadline:
        pass


def _children(root: psutil.Process) -> float:
    seconds = 0.0
    for child in root.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds
