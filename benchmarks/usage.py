"""CPU time of groups of processes, and of the machine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds since each process began, by group, and those of the whole machine: busy and in all."""

    groups: Mapping[str, float]
    busy: float
    total: float

    def since(self, before: Usage) -> Mapping[str, float]:
        """Return the CPU seconds that each group has spent since `before`."""
        return {name: seconds - before.groups[name] for name, seconds in self.groups.items()}

    def others(self, before: Usage, *, ours: float) -> float:
        """Return the share of the machine, 0 to 1, that others than our `ours` CPU seconds took since `before`."""
        return max(0.0, self.busy - before.busy - ours) / (self.total - before.total)


def usage(groups: Mapping[str, int]) -> Usage:
    """Return the usage of the trees of processes below the given ids, by name.

    A group named `x` whose tree has children counts them as `x children`, ended ones included.
    """
    seconds: dict[str, float] = {}
    for name, pid in groups.items():
        root = psutil.Process(pid)
        times = root.cpu_times()
        seconds[name] = times.user + times.system
        seconds[f"{name} children"] = times.children_user + times.children_system + _children(root)
    machine = psutil.cpu_times()
    total = float(sum(machine[:8]))  # Guests are counted within the user time already.
    return Usage(seconds, total - machine.idle - machine.iowait, total)


def quiet_within(seconds: float, *, busy: float = 0.1) -> bool:
    """Wait up to `seconds` for a second in which the machine is less than `busy` (0 to 1); return whether one came.

    Called between runs, when nothing of ours has work to do.
    """
    deadline = time.monotonic() + seconds
    while psutil.cpu_percent(interval=1.0) >= 100 * busy:
        if time.monotonic() > deadline:
            return False
    return True


def _children(root: psutil.Process) -> float:
    seconds = 0.0
    for child in root.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds
