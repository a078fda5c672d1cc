"""Dead sets of retry policies: list, group, replay, drop, restore their letters, from Python as from the command."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import DeadSetBusy, InvalidMessage
from ..headers import ReplayBudget
from ..policies.base import Policy
from ..policies.registry import RetryPolicies
from ..publishing import Publisher
from .dead_set import Condition, DeadSet, OnProgress, ignore_progress
from .letters import EVERYTHING, DeadLetter, LetterGroup, LetterSummary, group_letters
from .operations import OperationResult
from .replay import UNCHANGED, Halt, ReplayChanges, ReplayOptions, never_halt

#: Which letters an operation is for: a condition, such as a `LetterFilter`, or ids or their beginnings.
Chosen = Condition | Sequence[str]

#: Ids by the name of their dead set, as `DeadSets.choose` returns them.
IdsBySet = Mapping[str, Sequence[str]]


class DeadSets:
    """The dead sets of an application, by name.

    Methods raise DeadSetBusy and BrokerUnreachable, as those of `DeadSet` do. Conditions get summaries, which have no
    body and no headers. For example:

        dead.groups()                                             causes, with the number of letters of each
        dead.summaries(LetterFilter(reason="server-error"))       what lists need of letters
        dead.letters(LetterFilter(reason="server-error"))         the letters themselves
        dead.replay(["1d6a0f0e"], budget="fresh")                 one, by the beginning of its id
        dead.replay(LetterFilter(group="3f2a90c1"), canary=60.0)  one first; the others if it succeeds
    """

    def __init__(self, sets: Iterable[DeadSet]) -> None:
        self._sets = {dead_set.name: dead_set for dead_set in sets}

    @classmethod
    def of(cls, policies: RetryPolicies | Policy, broker: str, publisher: Publisher, **options: Any) -> DeadSets:
        """Return the dead sets of one or more policies on the broker at a URL; `options` are those of `DeadSet`."""
        with_dead_set = policies.dead_sets().values() if isinstance(policies, RetryPolicies) else [policies]
        return cls(DeadSet(broker, policy, publisher, **options) for policy in with_dead_set)

    def __iter__(self) -> Iterator[DeadSet]:
        return iter(self._sets.values())

    def __getitem__(self, name: str) -> DeadSet:
        """Return the dead set of a name. Raises InvalidMessage, which lists the names."""
        if name not in self._sets:
            raise InvalidMessage(f"no dead set {name!r}: there are {', '.join(self._sets)}")
        return self._sets[name]

    def only(self, name: str) -> DeadSets:
        """Return a collection of one of the dead sets. Raises InvalidMessage."""
        return DeadSets([self[name]])

    def depth(self) -> int:
        """Return the number of letters in all dead sets."""
        return sum(dead_set.depth() for dead_set in self)

    def iter_summaries(
        self, condition: Condition = EVERYTHING, *, first: int | None = None
    ) -> Generator[LetterSummary, None, None]:
        """Yield what lists need of the matching letters, set by set, oldest first.

        With `first`, only that many letters at the head of each dead set are read.
        """
        for dead_set in self:
            with closing(dead_set.iter_summaries(first=first)) as letters:
                yield from letters if condition is EVERYTHING else filter(condition, letters)

    def summaries(self, condition: Condition = EVERYTHING, *, limit: int | None = None) -> list[LetterSummary]:
        """Return what lists need of the matching letters, or of the oldest `limit` of each set."""
        found: list[LetterSummary] = []
        for dead_set in self:
            first = limit if condition is EVERYTHING else None
            with closing(dead_set.iter_summaries(first=first)) as letters:
                found += islice(filter(condition, letters), limit)
        return found

    def iter_letters(
        self, condition: Condition = EVERYTHING, *, first: int | None = None
    ) -> Generator[DeadLetter, None, None]:
        """Yield matching whole letters, as `iter_summaries` does, one at a time in memory."""
        for dead_set in self:
            with closing(dead_set.iter_letters(condition, first=first)) as letters:
                yield from letters

    def letters(self, condition: Condition = EVERYTHING) -> list[DeadLetter]:
        """Return the matching letters."""
        return list(self.iter_letters(condition))

    def groups(self, condition: Condition = EVERYTHING) -> list[LetterGroup]:
        """Return the matching letters grouped by reason, exception and location, the largest group first."""
        return group_letters(self.iter_summaries(condition))

    def find(self, prefixes: Sequence[str]) -> list[DeadLetter]:
        """Return the letters with these ids or beginnings of ids. Raises InvalidMessage if one is not unique."""
        found: dict[str, list[LetterSummary]] = {prefix: [] for prefix in prefixes}
        for dead_set in self:
            for prefix, matching in dead_set.find(found).items():
                found[prefix] += matching
        unique: dict[tuple[str, str], DeadLetter] = {}
        for prefix, letters in found.items():
            # A complete id means its letter, even if longer ids begin with it: foreign ids have any length.
            letters[:] = [letter for letter in letters if letter.id == prefix] or letters
            if len(letters) != 1:
                ids = f": {', '.join(letter.id for letter in letters[:5])}" if letters else ""
                raise InvalidMessage(f"id {prefix!r} matches {len(letters) or 'none'} of the dead letters{ids}")
            [letter] = letters
            for whole in [letter] if isinstance(letter, DeadLetter) else self[letter.set].read([letter.id]):
                unique[whole.set, whole.id] = whole
        return list(unique.values())

    def iter_chosen(self, chosen: Chosen) -> Iterator[DeadLetter]:
        """Return the letters of a condition or of ids. Raises InvalidMessage as `find` does."""
        return self.iter_letters(chosen) if callable(chosen) else iter(self.find(chosen))

    def iter_chosen_summaries(self, chosen: Chosen) -> Iterator[LetterSummary]:
        """Return what lists need of the letters of a condition or of ids. Raises InvalidMessage as `find` does."""
        return self.iter_summaries(chosen) if callable(chosen) else iter(self.find(chosen))

    def choose(self, chosen: Chosen, *, limit: int | None = None) -> dict[str, list[str]]:
        """Return the ids of chosen letters by dead set, at most `limit` in all. Raises as `find` does."""
        ids: dict[str, list[str]] = {}
        for letter in islice(self.iter_chosen_summaries(chosen), limit):
            ids.setdefault(letter.set, []).append(letter.id)
        return ids

    def replay(
        self,
        chosen: Chosen | IdsBySet = EVERYTHING,
        *,
        budget: ReplayBudget | None = None,
        limit: int | None = None,
        rate: float | None = None,
        canary: float | None = None,
        changes: ReplayChanges = UNCHANGED,
        again: bool = False,
        halt: Halt = never_halt,
        on_progress: OnProgress = ignore_progress,
    ) -> OperationResult:
        """Replay letters set by set, as `ReplayOptions` says; stop at the first set whose replay stops."""
        options = ReplayOptions(budget=budget, rate=rate, canary=canary, changes=changes, again=again, halt=halt)
        return self._in_each_set(partial(DeadSet.replay, options=options), chosen, limit, on_progress)

    def drop(
        self,
        chosen: Chosen | IdsBySet,
        export: Path,
        *,
        limit: int | None = None,
        on_progress: OnProgress = ignore_progress,
    ) -> OperationResult:
        """Drop letters set by set into one export file, as `DeadSet.drop` does."""
        return self._in_each_set(partial(DeadSet.drop, export=export), chosen, limit, on_progress)

    def tidy(self, max_letters: int, export: Path) -> tuple[dict[str, int], OperationResult]:
        """Tidy each set, as `DeadSet.tidy` does; return the letters in shards by set, and what was dropped.

        A set on which another process works is left out, and the result says so.
        """
        moved, result = {}, OperationResult()
        for dead_set in self:
            try:
                moved[dead_set.name], dropped = dead_set.tidy(max_letters, export)
            except DeadSetBusy as busy:
                dropped = OperationResult(stopped=str(busy))
            result += dropped
        return moved, result

    def forget(self, condition: Condition) -> int:
        """Remove matching letters for good, neither exported nor audited; return their number."""
        return sum(dead_set.forget(condition) for dead_set in self)

    def restore(self, letters: Iterable[DeadLetter]) -> list[str]:
        """Publish exported letters to the dead sets that they came from; return their ids."""
        by_set: dict[str, list[DeadLetter]] = {}
        for letter in letters:
            by_set.setdefault(self[letter.set].name, []).append(letter)
        return [letter_id for name, letters in by_set.items() for letter_id in self[name].restore(letters)]

    def _in_each_set(
        self,
        operate: Callable[..., OperationResult],
        chosen: Chosen | IdsBySet,
        limit: int | None,
        on_progress: OnProgress,
    ) -> OperationResult:
        ids_by_set = chosen if isinstance(chosen, Mapping) else self.choose(chosen, limit=limit)
        result = OperationResult()
        for name, ids in ids_by_set.items():
            done_before = len(result.done)

            def add_progress(count: int, done_before: int = done_before) -> None:
                on_progress(done_before + count)

            result += operate(self[name], ids, on_progress=add_progress)
            if result.stopped:
                break
        return result
