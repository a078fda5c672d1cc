"""Working through a dead set: first a message is safe elsewhere, then it leaves; nothing is held for long."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol

from ..connection import CONNECTION_ERRORS
from ..errors import ApplicationError
from .letters import DeadLetter, base_of
from .reading import Lease, Reading

#: Seconds after which all is given back and read anew: the broker closes a channel that holds messages for long
#: (`consumer_timeout`, half an hour unless configured).
PASS_SECONDS = 120.0

Tagged = tuple[DeadLetter, int]


class Stopped(Exception):
    """Raised by an act that must not go on; says why."""


class Act(Protocol):
    """What is done with dead messages before they leave."""

    @property
    def batch(self) -> int:
        """How many messages it takes at a time."""

    def ready(self, within: float) -> bool:
        """Wait at most so many seconds until it may go on; return whether it may. Raises Stopped."""

    def __call__(self, letters: Sequence[DeadLetter]) -> Mapping[str, str]:
        """Make messages safe elsewhere; return, by id, why some of them must stay. Raises Stopped."""

    def tidy(self, reading: Reading) -> None:
        """Remove from the dead set what the act itself brought there."""

    def finish(self) -> None:
        """Wait for what is still to come. Raises Stopped."""


@dataclass(slots=True)
class Worked:
    """What came of it, by id: `done` left the dead set, `stayed` says why, `missing` were not found any more."""

    done: list[str] = field(default_factory=list)
    stayed: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    #: Why it ended before all were done; empty where it did not.
    stopped: str = ""

    @property
    def complete(self) -> bool:
        """Whether all that was asked for was done."""
        return not (self.stayed or self.missing or self.stopped)

    def __add__(self, other: Worked) -> Worked:
        return Worked(
            self.done + other.done,
            self.stayed | other.stayed,
            self.missing + other.missing,
            self.stopped or other.stopped,
        )


def work(lease: Lease, wanted: Sequence[str], act: Act, *, progress: Callable[[int], None] = lambda _: None) -> Worked:
    """Act on the messages of these ids, in the order of the dead set; `progress` is called with how many were done."""
    task = _Task(lease, dict.fromkeys(wanted), act, progress)
    try:
        while task.left:
            act.ready(float("inf"))
            if not task.one_pass():
                break
        act.finish()
    except (Stopped, ApplicationError, *CONNECTION_ERRORS) as why:
        task.worked.stopped = str(why) or type(why).__name__
    else:
        task.worked.missing = list(task.left)
    return task.worked


@dataclass(slots=True)
class _Task:
    lease: Lease
    left: dict[str, None]
    act: Act
    progress: Callable[[int], None]
    worked: Worked = field(default_factory=Worked)
    #: Messages that left, by the base of their id: those that are named alike keep their names.
    gone: Counter[str] = field(default_factory=Counter)

    def one_pass(self) -> bool:
        """Read the dead set until the time is over or all are done; return whether any was met."""
        met = False
        deadline = time.monotonic() + PASS_SECONDS
        with self.lease.reading(self.gone.copy()) as reading, closing(self._batches(reading)) as batches:
            for batch in batches:
                if met and not self.act.ready(deadline - time.monotonic()):
                    break
                met = True
                self._do(batch, reading)
                if time.monotonic() > deadline:
                    break
            self.act.tidy(reading)
        return met

    def _batches(self, reading: Reading) -> Generator[list[Tagged], None, None]:
        """Yield those that are left, as many at a time as the act takes; stop reading when none is."""
        batch: list[Tagged] = []
        for letter, tag in reading:
            if letter.id in self.left:
                batch.append((letter, tag))
            if len(batch) in (self.act.batch, len(self.left)):
                yield batch
                batch = []
            if not self.left:
                return
        if batch:
            yield batch

    def _do(self, batch: Sequence[Tagged], reading: Reading) -> None:
        stays = self.act([letter for letter, _ in batch])
        for letter, tag in batch:
            del self.left[letter.id]
            if letter.id in stays:
                self.worked.stayed[letter.id] = stays[letter.id]
                continue
            reading.remove(tag)
            self.gone[base_of(letter.set, letter.delivery)] += 1
            self.worked.done.append(letter.id)
        self.progress(len(self.worked.done))
