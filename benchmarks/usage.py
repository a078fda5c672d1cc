"""CPU time of groups of processes, and of the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds by group of processes, and of the whole machine: busy and total."""

    groups: Mapping[str, float]
    busy: float
    total: float

    def since(self, before: Usage) -> Mapping[str, float]:
        """Return the CPU seconds of each group since `before`."""
        return {name: seconds - before.groups[name] for name, seconds in self.groups.items()}

    def others(self, before: Usage, *, ours: float) -> float:
        """Return the share of the machine, 0 to 1, that other programs took since `before`, beside `ours` seconds."""
        return max(0.0, self.busy - before.busy - ours) / (self.total - before.total)


def usage(groups: Mapping[str, int]) -> Usage:
    """Return the usage of the processes with these ids. The children of `x`, ended ones included, are `x children`."""
    seconds: dict[str, float] = {}
    for name, pid in groups.items():
        root = psutil.Process(pid)
        times = root.cpu_times()
        seconds[name] = times.user + times.system
        seconds[f"{name} children"] = times.children_user + times.children_system + _children(root)
    machine = psutil.cpu_times()
    total = float(sum(machine[:8]))  # User time already includes guests.
    return Usage(seconds, total - machine.idle - machine.iowait, total)


def own_usage() -> Usage:
    """Return the usage of this process and its children: contestants and services are some of them."""
    return usage({"own": os.getpid()})


def others_since(before: Usage) -> float:
    """Return the share of the machine, 0 to 1, that other programs took since an `own_usage`."""
    after = own_usage()
    return after.others(before, ours=sum(after.since(before).values()))


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
