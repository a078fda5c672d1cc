"""The dead set of one retry policy: read, replay, drop, forget and restore its letters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from itertools import chain, islice
from pathlib import Path

from kombu import Queue

from ..connection import connected
from ..errors import InvalidMessage
from ..outgoing import Outgoing
from ..policies.base import Policy
from ..publishing import Publisher
from .audit import Audit
from .canary import Canary
from .exports import ExportAndDrop
from .letters import DeadLetter, Labels, LetterSummary, id_matches
from .operations import Operation, OperationResult, carry_out_operation
from .replay import Replay, ReplayOptions, ReturnedCopies
from .sent import NoNotes, SentNotes
from .shards import OnNote, ShardedSet, ShardRules, opened

logger = logging.getLogger(__name__)

Condition = Callable[[LetterSummary], bool]

#: Called with the number of letters done so far.
OnProgress = Callable[[int], None]

#: Letters that a search by the beginnings of ids returns as whole ones: an error names no more than that.
_FEW = 5


def ignore_progress(_count: int) -> None:
    """Do nothing."""


def log_note(text: str) -> None:
    """Log what the operator should know of a dead set."""
    logger.warning("%s", text)


class _Forget(Operation):
    """Removes letters for good."""

    def apply(self, letters: Sequence[DeadLetter]) -> Mapping[str, str]:
        """Return that none must stay."""
        del letters
        return {}


class DeadSet:
    """The dead set of one policy, for `DeadSets`. Each method opens connections of its own and closes them again.

    All methods raise DeadSetBusy while another process works on the set for long, and BrokerUnreachable. Several
    threads may call them: they wait for each other as processes do. `on_note` gets what an operator should know: a
    wrong index, an interrupted move, or letters that were not read. `sent` keeps what replays are about to send.
    """

    def __init__(
        self,
        broker: str,
        policy: Policy,
        publisher: Publisher,
        *,
        audit: Audit | None = None,
        labels: Labels | None = None,
        sent: SentNotes | None = None,
        on_note: OnNote = log_note,
    ) -> None:
        if policy.dead is None:
            raise InvalidMessage(f"policy {policy.name} has no dead set")
        self.queue: Queue = policy.dead
        self.name: str = policy.dead.name
        self.policy = policy
        self._broker = broker
        self._publisher = publisher
        self._audit = audit
        self._sent: SentNotes = sent or NoNotes()
        self._rules = ShardRules(policy.shards_dead_set, labels)
        self._on_note = on_note

    def depth(self) -> int:
        """Return the number of letters."""
        with self._opened() as dead_set:
            return dead_set.total()

    def iter_summaries(self, *, first: int | None = None) -> Generator[LetterSummary, None, None]:
        """Yield what lists and filters need of the letters, or of the `first` of them, oldest first.

        Close the generator or exhaust it: it has the lease. Of a set without shards at most 5,000 are read. Letters
        that arrive meanwhile are not included.
        """
        with self._opened() as dead_set:
            yield from dead_set.summaries(first)

    def iter_letters(self, condition: Condition, *, first: int | None = None) -> Generator[DeadLetter, None, None]:
        """Yield the matching whole letters, as `iter_summaries` does."""
        with self._opened() as dead_set:
            yield from dead_set.letters(condition, first)

    def find(self, prefixes: Iterable[str]) -> dict[str, list[LetterSummary]]:
        """Return the letters that match each beginning of an id; if they are few, as whole ones."""
        found: dict[str, list[LetterSummary]] = {prefix: [] for prefix in prefixes}
        with self._opened() as dead_set:
            # Most letters match none, as their first characters show.
            beginnings = tuple(prefix.partition(".")[0] for prefix in found)
            for letter in dead_set.summaries(beginnings=beginnings):
                if letter.id.startswith(beginnings):
                    for prefix, letters in found.items():
                        if id_matches(letter.id, prefix):
                            letters.append(letter)
            few = [letters for letters in found.values() if len(letters) <= _FEW]
            moved = {each.id for letters in few for each in letters if not isinstance(each, DeadLetter)}
            whole = {letter.id: letter for letter in dead_set.read(moved)}
        for letters in few:
            whole_ones = (each if isinstance(each, DeadLetter) else whole.get(each.id) for each in letters)
            letters[:] = [letter for letter in whole_ones if letter is not None]
        return found

    def read(self, ids: Sequence[str]) -> list[DeadLetter]:
        """Return the whole letters with these ids, as far as they are there."""
        with self._opened() as dead_set:
            return dead_set.read(ids)

    def is_in_doubt(self, ident: str) -> bool:
        """Return whether an interrupted replay may have sent the letter with this id. Raises what the notes raise."""
        return any(ident in ids for ids in self._sent.notes(self.name).values())

    def replay(self, ids: Sequence[str], options: ReplayOptions, *, on_progress: OnProgress) -> OperationResult:
        """Publish letters to their queues; each is confirmed there before it is removed from the dead set.

        After a kill at any point, a letter is in the dead set, in its queue, or in both. What may be in both stays in
        the next replay, unless that one sends it `again`.
        """
        if self._audit:
            self._audit.require_writable()
        with ExitStack() as stack:
            dead_set = stack.enter_context(self._opened())
            connection = stack.enter_context(connected(self._broker))
            operation = Replay(
                self.policy,
                stack.enter_context(closing(self._publisher.sending_once())),
                options,
                returned=ReturnedCopies(connection, self.queue.exchange.name),
                sent=self._sent,
                in_doubt=frozenset() if options.again else self._in_doubt(dead_set),
                audit=self._audit,
                canary=(
                    Canary(stack.enter_context(connected(self._broker)), wait=options.canary)
                    if options.canary
                    else None
                ),
            )
            result = carry_out_operation(dead_set, ids, operation, on_progress=on_progress)
            if not result.is_broken:
                self._sent.delete(operation.notes)
            return result

    def drop(self, ids: Sequence[str], export: Path, *, on_progress: OnProgress = ignore_progress) -> OperationResult:
        """Append letters to the file `export`, then remove them from the dead set.

        After a kill at any point, a letter is in the file, in the dead set, or in both.
        """
        with self._opened() as dead_set:
            return carry_out_operation(dead_set, ids, ExportAndDrop(export, self._audit), on_progress=on_progress)

    def tidy(self, max_letters: int, export: Path) -> tuple[int, OperationResult]:
        """Move letters to shards, look for shards without an entry in the index, and drop the oldest letters beyond
        `max_letters`; 0 is no limit.

        Return the number of letters in shards, and the result of the drop, which is as that of `drop`.
        """
        result = OperationResult()
        with self._opened(thorough=True) as dead_set:
            while max_letters and (surplus := dead_set.total() - max_letters) > 0:
                ids = [letter.id for letter in islice(dead_set.summaries(), surplus)]
                operation = ExportAndDrop(export, self._audit)
                part = carry_out_operation(dead_set, ids, operation, on_progress=ignore_progress)
                result += part
                # Without shards the next of the oldest letters can be read only now.
                if not part.complete or self._rules.sharded:
                    break
            return dead_set.moved_count, result

    def forget(self, condition: Condition) -> int:
        """Remove matching letters; return their number."""
        with self._opened() as dead_set:
            ids = [letter.id for letter in dead_set.summaries() if condition(letter)]
            return len(carry_out_operation(dead_set, ids, _Forget(), on_progress=ignore_progress).done)

    def restore(self, letters: Iterable[DeadLetter]) -> list[str]:
        """Publish exported letters to the dead set, each confirmed, unless they are there; return their ids."""
        if self._audit:
            self._audit.require_writable()
        present = {letter.id for letter in self.iter_summaries()}
        restored = []
        for letter in letters:
            if letter.id in present:
                continue
            key, headers = letter.delivery.routing_key, letter.delivery.headers
            message = Outgoing.copy_of(
                letter.delivery, exchange=self.queue.exchange.name, routing_key=key, headers=headers
            )
            self._publisher.declare([self.queue])
            self._publisher.publish([message])
            if self._audit:
                self._audit.write("restore", [(letter, "restored")])
            restored.append(letter.id)
            present.add(letter.id)
        return restored

    def _in_doubt(self, dead_set: ShardedSet) -> frozenset[str]:
        """Return the ids of letters that an interrupted replay may have sent; delete notes of others."""
        if not (notes := self._sent.notes(self.name)):
            return frozenset()
        present = {letter.id for letter in dead_set.summaries()}
        self._sent.delete(key for key, ids in notes.items() if present.isdisjoint(ids))
        return frozenset(present.intersection(chain.from_iterable(notes.values())))

    def _opened(self, *, thorough: bool = False) -> AbstractContextManager[ShardedSet]:
        return opened(self._broker, self.name, self._publisher, self._rules, self._on_note, thorough=thorough)
