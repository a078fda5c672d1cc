"""Dead sets of retry policies: list, group, replay, drop, restore their letters, from Python as from the command."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from copy import copy
from functools import partial
from itertools import chain, islice
from pathlib import Path

from kombu import Queue

from ..connection import connected
from ..errors import DeadSetBusy, InvalidMessage
from ..policies.base import Policy, RetryPolicies
from ..publishing import Publisher
from .acts import ActResult, DeadSetAct, Halt, carry_out_act, never_halt
from .audit import Audit
from .canary import Canary
from .exports import ExportAndDrop
from .letters import EVERYTHING, DeadLetter, Labels, LetterGroup, LetterSummary, group_letters, id_matches
from .moved import restored_copy
from .reading import MAX_READ, leased
from .replay import PLAIN_REPLAY, Replay, ReplayJournal, ReplayOptions, ReturnedCopies
from .shards import OnWarning, ShardedSet

logger = logging.getLogger(__name__)

_NO_FILE = Audit()
_NO_JOURNAL = ReplayJournal()

Condition = Callable[[LetterSummary], bool]

#: Which letters an act is for: a condition, such as a `LetterFilter`, or ids or their beginnings.
Chosen = Condition | Sequence[str]

#: Ids by the name of their dead set, as `DeadSets.choose` returns them.
IdsBySet = Mapping[str, Sequence[str]]

#: Called with the number of letters done so far.
OnProgress = Callable[[int], None]


def ignore_progress(_count: int) -> None:
    """Do nothing."""


def log_warning(text: str) -> None:
    """Log what the operator should know of a dead set."""
    logger.warning("%s", text)


class DeadSets:
    """The dead sets of an application, by name.

    Each method opens connections of its own and closes them again. Methods raise DeadSetBusy while another process
    works on a set for long, and BrokerUnreachable. Several threads may call them: they wait for each other as processes
    do. Conditions get summaries, which have no body and no headers. For example:

        dead.groups()                                             causes, with the number of letters of each
        dead.summaries(LetterFilter(reason="server-error"))       what lists need of letters
        dead.letters(LetterFilter(reason="server-error"))         the letters themselves
        dead.replay(["1d6a0f0e"])                                 one, by the beginning of its id
        dead.replay(LetterFilter(group="3f2a90c1"), ReplayOptions(canary=60.0))
                                                                  one first; the others if it succeeds
    """

    def __init__(
        self,
        policies: RetryPolicies | Policy,
        broker: str,
        publisher: Publisher,
        *,
        audit: Audit = _NO_FILE,
        labels: Labels | None = None,
        journal: ReplayJournal = _NO_JOURNAL,
        on_warning: OnWarning = log_warning,
    ) -> None:
        """Prepare the dead sets of one or more policies on the broker at a URL.

        `on_warning` gets what an operator should know: a wrong index, an interrupted move, or letters that were not
        read. `journal` keeps what replays are about to send.
        """
        policies = policies if isinstance(policies, RetryPolicies) else RetryPolicies({}, policies)
        self._policies: Mapping[str, Policy] = policies.dead_sets()
        self._broker = broker
        self._publisher = publisher
        self._audit = audit
        self._labels = labels
        self._journal = journal
        self._on_warning = on_warning

    @property
    def names(self) -> list[str]:
        """The names of the dead sets."""
        return list(self._policies)

    def only(self, name: str) -> DeadSets:
        """Return a collection of one of the dead sets. Raises InvalidMessage, which lists the names."""
        if name not in self._policies:
            raise InvalidMessage(f"no dead set {name!r}: there are {', '.join(self.names)}")
        one = copy(self)
        one._policies = {name: self._policies[name]}
        return one

    # Reading

    def depth(self) -> int:
        """Return the number of letters in all dead sets."""
        total = 0
        for name in self.names:
            with self._opened(name) as dead_set:
                total += dead_set.total()
        return total

    def iter_summaries(self, condition: Condition = EVERYTHING) -> Generator[LetterSummary, None, None]:
        """Yield what lists need of the matching letters, set by set, oldest first.

        Close the generator or exhaust it: it has the lease. Of a set without shards at most 5,000 are read. Letters
        that arrive meanwhile are not included.
        """
        for name in self.names:
            with self._opened(name) as dead_set, closing(dead_set.summaries()) as letters:
                yield from letters if condition is EVERYTHING else filter(condition, letters)

    def summaries(self, condition: Condition = EVERYTHING, *, limit: int | None = None) -> list[LetterSummary]:
        """Return what lists need of the matching letters, or of the oldest `limit` of each set."""
        found: list[LetterSummary] = []
        first = limit if condition is EVERYTHING else None
        for name in self.names:
            with self._opened(name) as dead_set, closing(dead_set.summaries(first)) as letters:
                found += islice(filter(condition, letters), limit)
        return found

    def iter_letters(self, condition: Condition = EVERYTHING) -> Generator[DeadLetter, None, None]:
        """Yield matching whole letters, as `iter_summaries` does, one at a time in memory."""
        for name in self.names:
            with self._opened(name) as dead_set:
                yield from dead_set.letters(condition)

    def letters(self, condition: Condition = EVERYTHING) -> list[DeadLetter]:
        """Return the matching letters."""
        return list(self.iter_letters(condition))

    def groups(self, condition: Condition = EVERYTHING) -> list[LetterGroup]:
        """Return the matching letters grouped by reason, exception and location, the largest group first."""
        return group_letters(self.iter_summaries(condition))

    def find(self, prefixes: Sequence[str]) -> list[DeadLetter]:
        """Return the letters with these ids or beginnings of ids. Raises InvalidMessage if one is not unique."""
        found = self._find_summaries(prefixes)
        whole: dict[str, DeadLetter] = {letter.id: letter for letter in found if isinstance(letter, DeadLetter)}
        for name, ids in ids_by_set(letter for letter in found if letter.id not in whole).items():
            with self._opened(name) as dead_set:
                whole |= {letter.id: letter for letter in dead_set.read(ids)}
        if missing := [letter.id for letter in found if letter.id not in whole]:
            raise InvalidMessage(f"id {missing[0]!r} matches none of the dead letters")
        return [whole[letter.id] for letter in found]

    def iter_chosen(self, chosen: Chosen) -> Iterator[DeadLetter]:
        """Return the letters of a condition or of ids. Raises InvalidMessage as `find` does."""
        return self.iter_letters(chosen) if callable(chosen) else iter(self.find(chosen))

    def iter_chosen_summaries(self, chosen: Chosen) -> Iterator[LetterSummary]:
        """Return what lists need of the letters of a condition or of ids. Raises InvalidMessage as `find` does."""
        return self.iter_summaries(chosen) if callable(chosen) else iter(self._find_summaries(chosen))

    def choose(self, chosen: Chosen) -> dict[str, list[str]]:
        """Return the ids of chosen letters by dead set. Raises as `find` does."""
        return ids_by_set(self.iter_chosen_summaries(chosen))

    def is_in_doubt(self, letter: LetterSummary) -> bool:
        """Return whether an interrupted replay may have sent a letter. Raises what the notes raise."""
        return any(letter.id in ids for ids in self._journal.notes(letter.set).values())

    # Acting

    def replay(
        self,
        chosen: Chosen | IdsBySet = EVERYTHING,
        options: ReplayOptions = PLAIN_REPLAY,
        *,
        halt: Halt = never_halt,
        on_progress: OnProgress = ignore_progress,
    ) -> ActResult:
        """Publish letters to their queues; each is confirmed there before it is removed from its dead set.

        Stop between two batches when `halt` returns why, and at the first set whose replay stops. After a kill at any
        point, a letter is in the dead set, in its queue, or in both. What may be in both stays in the next replay,
        unless that one sends it `again`.
        """
        self._audit.require_writable()
        return self._in_each_set(partial(self._replay, options=options, halt=halt), chosen, on_progress)

    def drop(
        self,
        chosen: Chosen | IdsBySet,
        export: Path,
        *,
        halt: Halt = never_halt,
        on_progress: OnProgress = ignore_progress,
    ) -> ActResult:
        """Append letters to the file `export`, set by set, then remove them from their dead sets.

        Stop as `replay` does. After a kill at any point, a letter is in the file, in the dead set, or in both.
        """

        def drop(name: str, ids: Sequence[str], *, on_progress: OnProgress) -> ActResult:
            with self._opened(name) as dead_set:
                return carry_out_act(dead_set, ids, ExportAndDrop(export, self._audit, halt), on_progress=on_progress)

        return self._in_each_set(drop, chosen, on_progress)

    def tidy(self, max_letters: int, export: Path) -> tuple[dict[str, int], ActResult]:
        """Move letters to shards, find shards without an entry in the index, and drop letters as `drop` does.

        Of each set, the oldest letters beyond `max_letters` are dropped; 0 is no limit. Return the letters in shards by
        set, and what was dropped. A set on which another process works is left out, and
        the result says so.
        """
        moved, result = {}, ActResult()
        for name in self.names:
            try:
                with self._opened(name, thorough=True) as dead_set:
                    result += self._drop_surplus(dead_set, max_letters, export)
                    moved[name] = dead_set.moved_count
            except DeadSetBusy as busy:
                result += ActResult(stopped=str(busy))
        return moved, result

    def forget(self, condition: Condition) -> int:
        """Remove matching letters for good, neither exported nor audited; return their number."""
        removed = 0
        for name in self.names:
            with self._opened(name) as dead_set:
                ids = [letter.id for letter in dead_set.summaries() if condition(letter)]
                removed += len(carry_out_act(dead_set, ids, DeadSetAct(), on_progress=ignore_progress).done)
        return removed

    def restore(self, letters: Iterable[DeadLetter]) -> list[str]:
        """Publish exported letters to the dead sets that they came from, each confirmed, unless they are there.

        Return their ids. Raises InvalidMessage for a letter of an unknown set, or of one too long to compare.
        """
        self._audit.require_writable()
        exported, restored = list(letters), []
        present: dict[str, set[str]] = {}
        for name in ids_by_set(exported):
            with self.only(name)._opened(name) as dead_set:
                if (depth := dead_set.lease.depth()) > MAX_READ:
                    raise InvalidMessage(
                        f"{name} has {depth:,} letters, and only {MAX_READ:,} of them can be compared with those to "
                        "restore: replay or drop some first"
                    )
                present[name] = {letter.id for letter in dead_set.summaries()}
        for letter in exported:
            if letter.id in present[letter.set]:
                continue
            queue = self._queue(letter.set)
            self._publisher.declare([queue])
            self._publisher.publish([restored_copy(letter.delivery, queue.exchange.name)])
            self._audit.write("restore", [(letter, "restored")])
            restored.append(letter.id)
            present[letter.set].add(letter.id)
        return restored

    def _find_summaries(self, prefixes: Sequence[str]) -> list[LetterSummary]:
        """Return what lists need of the letters with these ids or beginnings of ids; raises as `find` does."""
        found: dict[str, list[LetterSummary]] = {prefix: [] for prefix in prefixes}
        # Most letters match none, as their first characters show.
        beginnings = tuple(prefix.partition(".")[0] for prefix in found)
        for name in self.names:
            with self._opened(name) as dead_set:
                for letter in dead_set.summaries(beginnings=beginnings):
                    for prefix, letters in found.items() if letter.id.startswith(beginnings) else ():
                        if id_matches(letter.id, prefix):
                            letters.append(letter)
        unique: dict[tuple[str, str], LetterSummary] = {}
        for prefix, letters in found.items():
            # A complete id means its letter, even if longer ids begin with it: foreign ids have any length.
            letters[:] = [letter for letter in letters if letter.id == prefix] or letters
            if len(letters) != 1:
                ids = f": {', '.join(letter.id for letter in letters[:5])}" if letters else ""
                raise InvalidMessage(f"id {prefix!r} matches {len(letters) or 'none'} of the dead letters{ids}")
            unique[letters[0].set, letters[0].id] = letters[0]
        return list(unique.values())

    def _replay(
        self, name: str, ids: Sequence[str], *, options: ReplayOptions, halt: Halt, on_progress: OnProgress
    ) -> ActResult:
        with ExitStack() as stack:
            dead_set = stack.enter_context(self._opened(name))
            connection = stack.enter_context(connected(self._broker))
            # What an interrupted replay may have sent stays. Notes of letters that are gone are deleted.
            notes = {} if options.again else self._journal.notes(name)
            present = {letter.id for letter in dead_set.summaries()} if notes else set()
            self._journal.delete(key for key, noted in notes.items() if present.isdisjoint(noted))
            act = Replay(
                self._policies[name],
                stack.enter_context(closing(self._publisher.sending_once())),
                options,
                returned=ReturnedCopies(connection, self._queue(name).exchange.name),
                journal=self._journal,
                in_doubt=frozenset(present.intersection(chain.from_iterable(notes.values()))),
                audit=self._audit,
                canary=(
                    Canary(stack.enter_context(connected(self._broker)), wait=options.canary)
                    if options.canary
                    else None
                ),
                halt=halt,
            )
            result = carry_out_act(dead_set, ids, act, on_progress=on_progress)
            if not result.is_broken:
                self._journal.delete(act.notes)
            return result

    def _drop_surplus(self, dead_set: ShardedSet, max_letters: int, export: Path) -> ActResult:
        result = ActResult()
        while max_letters and (surplus := dead_set.total() - max_letters) > 0:
            ids = [letter.id for letter in islice(dead_set.summaries(), surplus)]
            act = ExportAndDrop(export, self._audit)
            part = carry_out_act(dead_set, ids, act, on_progress=ignore_progress)
            result += part
            # Without shards the next of the oldest letters can be read only now.
            if not part.complete or self._policies[dead_set.lease.name].shards_dead_set:
                break
        return result

    def _in_each_set(
        self, operate: Callable[..., ActResult], chosen: Chosen | IdsBySet, on_progress: OnProgress
    ) -> ActResult:
        by_set = chosen if isinstance(chosen, Mapping) else self.choose(chosen)
        result = ActResult()
        for name, ids in by_set.items():
            done_before = len(result.done)

            def add_progress(count: int, done_before: int = done_before) -> None:
                on_progress(done_before + count)

            result += operate(name, ids, on_progress=add_progress)
            if result.stopped:
                break
        return result

    @contextmanager
    def _opened(self, name: str, *, thorough: bool = False) -> Iterator[ShardedSet]:
        """Yield a dead set under its lease, with its index checked and a long documented queue moved to shards.

        `thorough` also looks for shards that the index does not name. Raises as `leased` does.
        """
        with leased(self._broker, name) as lease:
            dead_set = ShardedSet(lease, self._publisher, self._labels, self._on_warning)
            dead_set.check(thorough=thorough)
            if self._policies[name].shards_dead_set:
                dead_set.fill()
            yield dead_set

    def _queue(self, name: str) -> Queue:
        queue: Queue = self._policies[name].dead
        return queue


def ids_by_set(letters: Iterable[LetterSummary]) -> dict[str, list[str]]:
    """Return the ids of letters by dead set."""
    ids: dict[str, list[str]] = {}
    for letter in letters:
        ids.setdefault(letter.set, []).append(letter.id)
    return ids
