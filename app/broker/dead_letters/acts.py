"""Carry an act out on chosen dead letters: each is safe elsewhere before it is removed from its dead set."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from ..connection import CONNECTION_ERRORS
from ..errors import ApplicationError, error_text
from .letters import DeadLetter, LetterIds, base_id
from .reading import DeadSetLease, DeadSetReader
from .shards import SetPart, ShardedSet

#: Seconds of one pass over a dead set. Then all letters are requeued and the set is read again. The broker closes a
#: channel that holds unacknowledged messages for longer than `consumer_timeout`, 30 minutes by default.
PASS_SECONDS = 120.0


class ActStopped(Exception):
    """Raised by an act that cannot continue; the text is the reason."""


#: Returns why an act must stop before its next letters; empty while it may continue.
Halt = Callable[[], str]


def never_halt() -> str:
    """Let an act continue to its end."""
    return ""


class DeadSetAct:
    """What is done with dead letters before they are removed from their set: by default nothing."""

    #: Letters per call of `apply`.
    batch_size = 100

    def __init__(self, halt: Halt = never_halt) -> None:
        """Stop between two batches when `halt` returns why."""
        self._halt = halt

    def apply(self, letters: Sequence[DeadLetter]) -> Mapping[str, str]:
        """Make the letters safe elsewhere; return, by id, why some must stay. Raises ActStopped."""
        del letters
        return {}

    def wait_ready(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until `apply` may be called; return whether it may. Raises ActStopped."""
        del timeout
        self.require_no_halt()
        return True

    def require_no_halt(self) -> None:
        """Raise ActStopped if the act must stop."""
        if reason := self._halt():
            raise ActStopped(reason)

    def remove_copies(self, lease: DeadSetLease) -> None:
        """Remove copies that the act itself brought to the dead set."""

    def finish(self) -> None:
        """Wait for outstanding outcomes. Raises ActStopped."""


@dataclass(slots=True)
class ActResult:
    """The outcome by id: `done` left the dead set, `stayed` has reasons, `missing` were no longer there."""

    done: list[str] = field(default_factory=list)
    stayed: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    #: Why it ended early; empty if it did not.
    stopped: str = ""
    #: Whether the broker may not have learnt what was removed.
    is_broken: bool = False

    @property
    def complete(self) -> bool:
        """Whether every chosen letter was done."""
        return not (self.stayed or self.missing or self.stopped)

    def __add__(self, other: ActResult) -> ActResult:
        return ActResult(
            self.done + other.done,
            self.stayed | other.stayed,
            self.missing + other.missing,
            self.stopped or other.stopped,
            self.is_broken or other.is_broken,
        )


def carry_out_act(
    dead_set: ShardedSet, ids: Sequence[str], act: DeadSetAct, *, on_progress: Callable[[int], None]
) -> ActResult:
    """Apply an act to the letters with these ids, in the order of the set, and remove those that it took.

    `on_progress` is called with the number of letters done so far.
    """
    result = ActResult()
    try:
        for part in dead_set.parts(ids):
            run = _ActRun(dead_set.lease, part, act, on_progress, result)
            try:
                run.until_done()
            finally:
                if run.departed:
                    dead_set.note_removed(part, set(part.ids).intersection(result.done))
            if run.remaining:
                dead_set.note_missing(part)
        act.finish()
    except (ActStopped, ApplicationError, *CONNECTION_ERRORS) as error:
        result.stopped = error_text(error)
        result.is_broken = not isinstance(error, ActStopped)
        result.missing = []
    return result


@dataclass(slots=True)
class _ActRun:
    """An act under way on the letters of one queue.

    `departed` counts removed letters by base id, so that equal ones keep their ids.
    """

    lease: DeadSetLease
    part: SetPart
    act: DeadSetAct
    on_progress: Callable[[int], None]
    result: ActResult
    remaining: dict[str, None] = field(init=False)
    departed: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.remaining = dict.fromkeys(self.part.ids)

    def until_done(self) -> None:
        """Read the queue in passes until all letters are done or none is found. Raises ActStopped."""
        while self.remaining:
            self.act.wait_ready(float("inf"))
            try:
                ids = LetterIds(self.part.before + self.departed)
                with self.lease.reading(self.part.queue, ids=ids) as reader, closing(self._batches(reader)) as batches:
                    found = self._apply(batches, reader)
            except (ActStopped, ApplicationError):
                self.act.remove_copies(self.lease)
                raise
            self.act.remove_copies(self.lease)
            if not found:
                break
        self.result.missing += self.remaining

    def _apply(self, batches: Iterable[list[tuple[DeadLetter, int]]], reader: DeadSetReader) -> bool:
        """Apply the act for at most PASS_SECONDS and remove what it took; return whether there was a batch."""
        found = False
        deadline = time.monotonic() + PASS_SECONDS
        for batch in batches:
            if found and not self.act.wait_ready(deadline - time.monotonic()):
                break
            found = True
            stayed = self.act.apply([letter for letter, _ in batch])
            for letter, delivery_tag in batch:
                del self.remaining[letter.id]
                if letter.id in stayed:
                    self.result.stayed[letter.id] = stayed[letter.id]
                else:
                    reader.remove(delivery_tag)
                    self.departed[base_id(letter.set, letter.delivery)] += 1
                    self.result.done.append(letter.id)
            self.on_progress(len(self.result.done))
            if time.monotonic() > deadline:
                break
        return found

    def _batches(self, reader: DeadSetReader) -> Generator[list[tuple[DeadLetter, int]], None, None]:
        """Yield the remaining letters with their delivery tags, in batches; stop reading when none remains."""
        batch: list[tuple[DeadLetter, int]] = []
        for letter, delivery_tag in reader:
            if letter.id in self.remaining:
                batch.append((letter, delivery_tag))
            if len(batch) in (self.act.batch_size, len(self.remaining)):
                yield batch
                batch = []
            if not self.remaining:
                return
        if batch:
            yield batch
