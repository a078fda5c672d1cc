"""Dead sets of retry policies: list, group, replay, drop, restore their letters, from Python as from the command."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import islice
from pathlib import Path

from kombu import Queue

from ..connection import connected
from ..errors import InvalidMessage
from ..headers import ReplayBudget
from ..outgoing import Outgoing
from ..policies.base import Policy
from ..policies.registry import RetryPolicies
from ..publishing import Publisher
from .audit import Audit
from .canary import Canary
from .exports import ExportAndDrop
from .letters import EVERYTHING, DeadLetter, LetterGroup, group_letters, id_matches
from .operations import OperationResult, carry_out_operation
from .reading import leased
from .replay import UNCHANGED, Halt, Replay, ReplayChanges, ReturnedCopies, never_halt

Condition = Callable[[DeadLetter], bool]

#: Which letters an operation is for: a condition, such as a `LetterFilter`, or ids or their beginnings.
Chosen = Condition | Sequence[str]

#: Ids by the name of their dead set, as `DeadSets.choose` returns them.
IdsBySet = Mapping[str, Sequence[str]]

#: Called with the number of letters done so far.
OnProgress = Callable[[int], None]


def _ignore_progress(_count: int) -> None:
    """Do nothing."""


class DeadSet:
    """The dead set of one policy, for `DeadSets`. Each method opens connections of its own and closes them again.

    All methods raise DeadSetBusy while another process works on the set, and BrokerUnreachable.
    """

    def __init__(self, broker: str, policy: Policy, publisher: Publisher, *, audit: Audit | None = None) -> None:
        if policy.dead is None:
            raise InvalidMessage(f"policy {policy.name} has no dead set")
        self.queue: Queue = policy.dead
        self.name: str = policy.dead.name
        self.policy = policy
        self._broker = broker
        self._publisher = publisher
        self._audit = audit

    def depth(self) -> int:
        """Return the number of letters."""
        with leased(self._broker, self.name) as lease:
            return lease.depth()

    def iter_letters(self, *, first: int | None = None) -> Generator[DeadLetter, None, None]:
        """Yield the letters, or the `first` of them, oldest first; close the generator or exhaust it.

        One letter at a time is in memory. Reading changes nothing: all are requeued in their order. Letters that arrive
        meanwhile are not included.
        """
        with leased(self._broker, self.name) as lease, lease.reading(first=first) as reader:
            for letter, _ in reader:
                yield letter

    def replay(
        self,
        ids: Sequence[str],
        *,
        budget: ReplayBudget | None,
        rate: float | None,
        canary: float | None,
        on_progress: OnProgress,
        changes: ReplayChanges = UNCHANGED,
        halt: Halt = never_halt,
    ) -> OperationResult:
        """Publish letters to their queues; each is confirmed there before it is removed from the dead set.

        After a kill at any point, a letter is in the dead set, in its queue, or in both. `budget` defaults to the
        policy's; `rate` is letters per second. `canary` is the seconds to wait for the outcome of each letter. Then
        the others follow only if the first one succeeds, and the first failure stops the replay.
        It also stops, between two batches, when `halt` returns why.
        """
        if rate is not None and rate <= 0:
            raise InvalidMessage(f"rate {rate:g}: expected more than 0 letters per second")
        if self._audit:
            self._audit.require_writable()
        with ExitStack() as stack:
            lease = stack.enter_context(leased(self._broker, self.name))
            connection = stack.enter_context(connected(self._broker))
            operation = Replay(
                self.policy,
                self._publisher,
                returned=ReturnedCopies(connection, self.queue.exchange.name),
                budget=budget or self.policy.replay_budget,
                audit=self._audit,
                rate=rate,
                canary=Canary(stack.enter_context(connected(self._broker)), wait=canary) if canary else None,
                changes=changes,
                halt=halt,
            )
            return carry_out_operation(lease, ids, operation, on_progress=on_progress)

    def drop(self, ids: Sequence[str], export: Path, *, on_progress: OnProgress) -> OperationResult:
        """Append letters to the file `export`, then remove them from the dead set.

        After a kill at any point, a letter is in the file, in the dead set, or in both.
        """
        with leased(self._broker, self.name) as lease:
            return carry_out_operation(lease, ids, ExportAndDrop(export, self._audit), on_progress=on_progress)

    def forget(self, condition: Condition) -> int:
        """Remove matching letters; return their number."""
        removed = 0
        with leased(self._broker, self.name) as lease, lease.reading() as reader:
            for letter, delivery_tag in reader:
                if condition(letter):
                    reader.remove(delivery_tag)
                    removed += 1
        return removed

    def restore(self, letters: Iterable[DeadLetter]) -> list[str]:
        """Publish exported letters to the dead set, each confirmed, unless they are there; return their ids."""
        if self._audit:
            self._audit.require_writable()
        present = {letter.id for letter in self.iter_letters()}
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


class DeadSets:
    """The dead sets of an application, by name.

    Methods raise DeadSetBusy and BrokerUnreachable, as those of `DeadSet` do. For example:

        dead.groups()                                             causes, with the number of letters of each
        dead.letters(LetterFilter(reason="server-error"))         the letters themselves
        dead.replay(["1d6a0f0e"], budget="fresh")                 one, by the beginning of its id
        dead.replay(LetterFilter(group="3f2a90c1"), canary=60.0)  one first; the others if it succeeds
    """

    def __init__(self, sets: Iterable[DeadSet]) -> None:
        self._sets = {dead_set.name: dead_set for dead_set in sets}

    @classmethod
    def of(
        cls, policies: RetryPolicies | Policy, broker: str, publisher: Publisher, *, audit: Audit | None = None
    ) -> DeadSets:
        """Return the dead sets of one or more policies on the broker at a URL."""
        with_dead_set = policies.dead_sets().values() if isinstance(policies, RetryPolicies) else [policies]
        return cls(DeadSet(broker, policy, publisher, audit=audit) for policy in with_dead_set)

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

    def iter_letters(
        self, condition: Condition = EVERYTHING, *, first: int | None = None
    ) -> Generator[DeadLetter, None, None]:
        """Yield matching letters, set by set, oldest first, one at a time in memory.

        With `first`, only that many letters at the head of each dead set are read.
        """
        for dead_set in self:
            with closing(dead_set.iter_letters(first=first)) as letters:
                yield from filter(condition, letters)

    def letters(self, condition: Condition = EVERYTHING) -> list[DeadLetter]:
        """Return the matching letters."""
        return list(self.iter_letters(condition))

    def groups(self, condition: Condition = EVERYTHING) -> list[LetterGroup]:
        """Return the matching letters grouped by reason, exception and location, the largest group first."""
        return group_letters(self.iter_letters(condition))

    def find(self, prefixes: Sequence[str]) -> list[DeadLetter]:
        """Return the letters with these ids or beginnings of ids. Raises InvalidMessage if one is not unique."""
        found: dict[str, list[DeadLetter]] = {prefix: [] for prefix in prefixes}
        for letter in self.iter_letters():
            for prefix, letters in found.items():
                if id_matches(letter.id, prefix):
                    letters.append(letter)
        for prefix, letters in found.items():
            # A complete id means its letter, even if longer ids begin with it: foreign ids have any length.
            letters[:] = [letter for letter in letters if letter.id == prefix] or letters
            if len(letters) != 1:
                ids = f": {', '.join(letter.id for letter in letters[:5])}" if letters else ""
                raise InvalidMessage(f"id {prefix!r} matches {len(letters) or 'none'} of the dead letters{ids}")
        return list({(letter.set, letter.id): letter for [letter] in found.values()}.values())

    def iter_chosen(self, chosen: Chosen) -> Iterator[DeadLetter]:
        """Return the letters of a condition or of ids. Raises InvalidMessage as `find` does."""
        return self.iter_letters(chosen) if callable(chosen) else iter(self.find(chosen))

    def choose(self, chosen: Chosen, *, limit: int | None = None) -> dict[str, list[str]]:
        """Return the ids of chosen letters by dead set, at most `limit` in all. Raises as `find` does."""
        ids: dict[str, list[str]] = {}
        for letter in islice(self.iter_chosen(chosen), limit):
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
        halt: Halt = never_halt,
        on_progress: OnProgress = _ignore_progress,
    ) -> OperationResult:
        """Replay letters set by set, as `DeadSet.replay` does; stop at the first set whose replay stops."""
        replay = partial(DeadSet.replay, budget=budget, rate=rate, canary=canary, changes=changes, halt=halt)
        return self._in_each_set(replay, chosen, limit, on_progress)

    def drop(
        self,
        chosen: Chosen | IdsBySet,
        export: Path,
        *,
        limit: int | None = None,
        on_progress: OnProgress = _ignore_progress,
    ) -> OperationResult:
        """Drop letters set by set into one export file, as `DeadSet.drop` does."""
        return self._in_each_set(partial(DeadSet.drop, export=export), chosen, limit, on_progress)

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
