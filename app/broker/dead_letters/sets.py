"""Dead sets that can be worked: look, group, replay, drop, restore, from Python as from the command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from kombu import Queue

from ..connection import connected
from ..errors import InvalidMessage
from ..policies.base import Budget, Policy
from ..policies.registry import Policies
from ..publishing import Outgoing, Publisher
from .audit import Audit
from .canary import Canary
from .exports import Exporting
from .letters import EVERYTHING, DeadLetter, LetterGroup, group_letters, named
from .reading import leased
from .replaying import Replaying, Watch
from .working import Worked, work

#: Which messages: a condition (`LetterFilter` is one), or ids.
Chosen = Callable[[DeadLetter], bool] | Sequence[str]

#: Ids by the name of their dead set, as `choose` returns them.
BySet = Mapping[str, Sequence[str]]

Progress = Callable[[int], None]


def _silent(_count: int) -> None:
    """Show no progress."""


class DeadSet:
    """The dead set of one policy. Every method opens a connection of its own and has closed it when it returns.

    All of them raise DeadSetBusy while somebody else works on it, and BrokerUnreachable.
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
        """Return how many dead messages there are."""
        with leased(self._broker, self.name) as lease:
            return lease.depth()

    def letters(self, *, first: int | None = None) -> Generator[DeadLetter, None, None]:
        """Yield every dead message, or the `first` so many, oldest first; close the iterator or exhaust it.

        One at a time is in memory. Looking changes nothing: they go back in their order, and only those there at the
        start are seen.
        """
        with leased(self._broker, self.name) as lease, lease.reading(first=first) as reading:
            for letter, _ in reading:
                yield letter

    def look(self) -> list[DeadLetter]:
        """Return every dead message, oldest first, bodies included."""
        return list(self.letters())

    def ids(self, which: Callable[[DeadLetter], bool] = EVERYTHING, *, limit: int | None = None) -> list[str]:
        """Return the ids of the messages that are meant, oldest first, at most `limit`."""
        with closing(self.letters()) as letters:
            return [letter.id for letter in islice(filter(which, letters), limit)]

    def replay(
        self,
        chosen: Chosen = EVERYTHING,
        *,
        budget: Budget | None = None,
        limit: int | None = None,
        rate: float | None = None,
        canary: float | None = None,
        progress: Progress = _silent,
    ) -> Worked:
        """Send dead messages back to their queues: confirmed there, then taken from the dead set.

        Killed at any point, a message is in the dead set, or in its queue, or in both. `budget` is the policy's own
        unless given; `rate` is messages a second. With `canary` one goes first, and others follow only if it lives; it
        is the seconds to wait for the outcome of each, and the first that does not live ends the replay.
        """
        if rate is not None and rate <= 0:
            raise InvalidMessage(f"rate {rate:g}: expected more than 0 messages a second")
        if self._audit:
            self._audit.check()
        wanted = self._wanted(chosen, limit)
        with ExitStack() as stack:
            lease = stack.enter_context(leased(self._broker, self.name))
            own = stack.enter_context(connected(self._broker))
            heard = Canary(stack.enter_context(connected(self._broker)), wait=canary) if canary else None
            act = Replaying(
                self.policy,
                self._publisher,
                watch=Watch(own, self.queue.exchange.name),
                budget=budget or self.policy.replay_budget,
                audit=self._audit,
                rate=rate,
                canary=heard,
            )
            return work(lease, wanted, act, progress=progress)

    def drop(self, chosen: Chosen, export: Path, *, limit: int | None = None, progress: Progress = _silent) -> Worked:
        """Append dead messages to the file `export`, then take them from the dead set.

        Killed at any point, a message is in the file, or in the dead set, or in both.
        """
        wanted = self._wanted(chosen, limit)
        with leased(self._broker, self.name) as lease:
            return work(lease, wanted, Exporting(export, self._audit), progress=progress)

    def restore(self, letters: Iterable[DeadLetter]) -> list[str]:
        """Put exported messages back, each confirmed; return their ids. One that is there is not put there twice."""
        if self._audit:
            self._audit.check()
        there = Counter(self.ids())
        restored = []
        for letter in letters:
            if there[letter.id]:
                continue
            self._publisher.declare([self.queue])
            self._publisher.publish([self._as_it_was(letter)])
            if self._audit:
                self._audit.write("restore", [(letter, "restored")])
            restored.append(letter.id)
            there[letter.id] += 1
        return restored

    def _wanted(self, chosen: Chosen, limit: int | None) -> list[str]:
        return self.ids(chosen, limit=limit) if callable(chosen) else list(chosen)[:limit]

    def _as_it_was(self, letter: DeadLetter) -> Outgoing:
        dead = letter.delivery
        return Outgoing(
            exchange=self.queue.exchange.name,
            routing_key=dead.routing_key,
            body=dead.body,
            headers=dict(dead.headers),
            properties=dead.kept_properties(),
            content_type=dead.content_type,
            content_encoding=dead.content_encoding,
        )


class DeadSets:
    """The dead sets of an application, by name.

    dead.groups()                                       how many died of what, and where
    dead.look(Where(reason="server-error"))             the messages themselves
    dead.replay(["1d6a0f0e"], budget="fresh")           one, by the beginning of its id
    dead.replay(Where(group="3f2a90c1"), canary=60.0)   one first; the others if it lives
    """

    def __init__(self, sets: Iterable[DeadSet]) -> None:
        self._sets = {one.name: one for one in sets}

    @classmethod
    def of(
        cls, policies: Policies | Policy, broker: str, publisher: Publisher, *, audit: Audit | None = None
    ) -> DeadSets:
        """Return the dead sets of one policy or of many on a broker, given by its URL."""
        buried = policies.dead_sets().values() if isinstance(policies, Policies) else [policies]
        return cls(DeadSet(broker, policy, publisher, audit=audit) for policy in buried)

    def __iter__(self) -> Iterator[DeadSet]:
        return iter(self._sets.values())

    def named(self, name: str) -> DeadSet:
        """Return one of them; raises InvalidMessage naming those that there are."""
        if name not in self._sets:
            raise InvalidMessage(f"no dead set {name!r}: there are {', '.join(self._sets)}")
        return self._sets[name]

    def only(self, name: str) -> DeadSets:
        """Return these dead sets reduced to one; raises InvalidMessage."""
        return DeadSets([self.named(name)])

    def depth(self) -> int:
        """Return how many dead messages there are in all."""
        return sum(one.depth() for one in self)

    def letters(
        self, where: Callable[[DeadLetter], bool] = EVERYTHING, *, first: int | None = None
    ) -> Generator[DeadLetter, None, None]:
        """Yield the dead messages that are meant, set by set, oldest first, one at a time in memory.

        With `first`, only so many at the head of each dead set are looked at.
        """
        for one in self:
            with closing(one.letters(first=first)) as letters:
                yield from filter(where, letters)

    def look(self, where: Callable[[DeadLetter], bool] = EVERYTHING) -> list[DeadLetter]:
        """Return the dead messages that are meant."""
        return list(self.letters(where))

    def groups(self, where: Callable[[DeadLetter], bool] = EVERYTHING) -> list[LetterGroup]:
        """Return them grouped by reason, exception and location, the largest group first."""
        return group_letters(self.letters(where))

    def find(self, typed: Sequence[str]) -> list[DeadLetter]:
        """Return the messages that ids, or their beginnings, name; raises InvalidMessage for any that names not one."""
        found: dict[str, list[DeadLetter]] = {each: [] for each in typed}
        for letter in self.letters():
            for each, letters in found.items():
                if named(letter.id, each):
                    letters.append(letter)
        for each, letters in found.items():
            # A whole id is that message's, though others begin with it: ids may be anybody's.
            letters[:] = [letter for letter in letters if letter.id == each] or letters
            if len(letters) != 1:
                told = f": {', '.join(letter.id for letter in letters[:5])}" if letters else ""
                raise InvalidMessage(f"{each!r} names {len(letters) or 'none'} of the dead messages{told}")
        return list({(letter.set, letter.id): letter for [letter] in found.values()}.values())

    def resolve(self, chosen: Chosen) -> Iterator[DeadLetter]:
        """Return the messages that are meant, by a condition or by ids; raises InvalidMessage as `find` does."""
        return self.letters(chosen) if callable(chosen) else iter(self.find(chosen))

    def choose(self, chosen: Chosen, *, limit: int | None = None) -> dict[str, list[str]]:
        """Return the ids that are meant, by dead set, at most `limit` in all; raises InvalidMessage as `find` does."""
        letters = self.resolve(chosen)
        ids: dict[str, list[str]] = {}
        for letter in islice(letters, limit):
            ids.setdefault(letter.set, []).append(letter.id)
        return ids

    def replay(
        self,
        chosen: Chosen | BySet = EVERYTHING,
        *,
        budget: Budget | None = None,
        limit: int | None = None,
        rate: float | None = None,
        canary: float | None = None,
        progress: Progress = _silent,
    ) -> Worked:
        """Replay those that are meant, set by set, as `DeadSet.replay` does; the first set that stops ends it."""

        def act(one: DeadSet, ids: Sequence[str], progress: Progress) -> Worked:
            return one.replay(ids, budget=budget, rate=rate, canary=canary, progress=progress)

        return self._each(chosen, limit, progress, act)

    def drop(
        self, chosen: Chosen | BySet, export: Path, *, limit: int | None = None, progress: Progress = _silent
    ) -> Worked:
        """Drop those that are meant, as `DeadSet.drop` does, into one file."""

        def act(one: DeadSet, ids: Sequence[str], progress: Progress) -> Worked:
            return one.drop(ids, export, progress=progress)

        return self._each(chosen, limit, progress, act)

    def restore(self, letters: Iterable[DeadLetter]) -> list[str]:
        """Put exported messages back into the dead sets that they came from; return their ids."""
        by_set: dict[str, list[DeadLetter]] = {}
        for letter in letters:
            by_set.setdefault(self.named(letter.set).name, []).append(letter)
        return [ident for name, its in by_set.items() for ident in self.named(name).restore(its)]

    def _each(
        self,
        chosen: Chosen | BySet,
        limit: int | None,
        progress: Progress,
        act: Callable[[DeadSet, Sequence[str], Progress], Worked],
    ) -> Worked:
        by_set = chosen if isinstance(chosen, Mapping) else self.choose(chosen, limit=limit)
        worked = Worked()
        for name, ids in by_set.items():
            before = len(worked.done)
            worked = worked + act(self.named(name), ids, lambda count, before=before: progress(before + count))  # type: ignore[misc]
            if worked.stopped:
                break
        return worked


def export_name(now: datetime | None = None) -> str:
    """Return a name for a file of dropped messages, by the time in UTC."""
    return f"dropped-{(now or datetime.now(UTC)).strftime('%Y%m%dT%H%M%S.%fZ')}.jsonl"
