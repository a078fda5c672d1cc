"""Dead letters as values: their ids, filters and groups."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..delivery import Delivery
from ..headers import DEAD_ID, replay_changes, replay_history
from ..nesting import read_json
from .causes import Death, death_of, values_of

#: What a dead id in a header must look like: anyone may write that header.
_DEAD_ID = re.compile(r"[0-9A-Za-z-]{8,64}")


_NO_LABELS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterSummary(Death):
    """What lists, groups and filters need of a message of the dead set `set`; it has no traceback.

    `id` is its header `perennial-dead-id`, or a hash of its content where that header is missing or invalid. Letters
    with the same id are numbered in the order of the set: `id`, `id.2`, `id.3`. `labels` is what the application
    found in the message when it was moved to a shard.
    """

    id: str
    set: str
    routing_key: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: _NO_LABELS)

    @property
    def queue(self) -> str:
        """The queue that it was consumed from and is replayed to; empty where it was never routed to one."""
        return self.cause.queue

    @property
    def reason(self) -> str:
        """The reason code."""
        return self.cause.reason

    @property
    def group(self) -> str:
        """The key of letters with the same reason, exception and location."""
        return self.cause.group

    @property
    def error(self) -> str:
        """Exception and message as one text."""
        return f"{self.cause.exception}: {self.error_message}".strip(": ")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter(LetterSummary):
    """A whole message of a dead set."""

    delivery: Delivery

    @classmethod
    def of(cls, delivery: Delivery, *, id: str, set: str) -> DeadLetter:
        """Return a delivery from a dead set as a dead letter."""
        death = values_of(death_of(delivery))
        return cls(**death, id=id, set=set, routing_key=delivery.routing_key, delivery=delivery)

    @property
    def replay_history(self) -> tuple[str, ...]:
        """The dead ids under which it was in a dead set before, the latest first."""
        return replay_history(self.delivery.headers)

    @property
    def changes(self) -> tuple[str, ...]:
        """What replays changed of it, each as `<dead id>: <changes>`, the latest first."""
        return replay_changes(self.delivery.headers)

    def arguments(self) -> Any:
        """Return Celery's [args, kwargs], else the JSON value of the body, else the body as text."""
        try:
            value = read_json(self.delivery.body)
        except ValueError:
            return self.delivery.body.decode(errors="replace")
        is_celery = "task" in self.delivery.headers and isinstance(value, list) and len(value) == 3
        return value[:2] if is_celery else value


#: Finds labels in a whole letter, by which the application lists and filters its summary. It never raises.
Labels = Callable[[DeadLetter], Mapping[str, str]]


class LetterIds:
    """Gives the letters of a dead set their ids, in the order of the set.

    `before` counts, by base id, letters that come before the next one, or that left the set: those that remain keep
    their numbers.
    """

    def __init__(self, before: Counter[str] | None = None) -> None:
        self._seen: Counter[str] = Counter(before or {})

    def next_id(self, set_name: str, delivery: Delivery) -> str:
        """Return the id of the next letter."""
        return self._number(base_id(set_name, delivery))

    def numbered(self, summaries: Iterable[LetterSummary]) -> list[LetterSummary]:
        """Return the next letters, whose ids have no numbers yet, with their ids."""
        found = []
        for summary in summaries:
            letter_id = self._number(summary.id)
            found.append(summary if letter_id == summary.id else replace(summary, id=letter_id))
        return found

    def seen(self) -> Counter[str]:
        """Return how many letters had each base id."""
        return self._seen.copy()

    def _number(self, base: str) -> str:
        self._seen[base] += 1
        return base if self._seen[base] == 1 else f"{base}.{self._seen[base]}"


def seen_before(letters: Iterable[LetterSummary]) -> Counter[str]:
    """Return, by base id, how many letters came before those of one queue, which have their numbers."""
    before: Counter[str] = Counter()
    for letter in letters:
        base, _, number = letter.id.partition(".")
        before.setdefault(base, int(number or 1) - 1)
    return before


def base_id(set_name: str, delivery: Delivery) -> str:
    """Return a letter's dead id without a number, or 16 hex digits of its dead set, routing key and body."""
    given = delivery.headers.get(DEAD_ID)
    if isinstance(given, str) and _DEAD_ID.fullmatch(given):
        return given
    digest = hashlib.blake2b(digest_size=8)
    for part in (set_name.encode(), delivery.routing_key.encode(errors="replace"), delivery.body):
        digest.update(part + b"\0")
    return digest.hexdigest()


def id_matches(letter_id: str, prefix: str) -> bool:
    """Return whether an id has a prefix, such as `1d6a` or `1d6a.2`. Without a number, only the first one has."""
    base, _, number = letter_id.partition(".")
    base_prefix, _, prefix_number = prefix.partition(".")
    return bool(base_prefix) and base.startswith(base_prefix) and (number or "1") == (prefix_number or "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """A condition on dead letters: all given fields must match.

    `task`, `reason` and `exception` are compared exactly. `before` and `after` are seconds since the epoch; a letter
    whose time of failure is unknown matches neither.
    """

    task: str = ""
    reason: str = ""
    exception: str = ""
    group: str = ""
    before: float | None = None
    after: float | None = None

    def __call__(self, letter: LetterSummary) -> bool:
        """Return whether the letter matches."""
        cause = letter.cause
        return (
            self.task in ("", cause.task)
            and self.reason in ("", cause.reason)
            and self.exception in ("", cause.exception)
            and self.group in ("", letter.group)
            and (self.before is None or (letter.failed_at is not None and letter.failed_at < self.before))
            and (self.after is None or (letter.failed_at is not None and letter.failed_at >= self.after))
        )


#: Matches every letter.
EVERYTHING = LetterFilter()


@dataclass(slots=True)
class LetterGroup:
    """Letters with the same reason, exception and location. Times are seconds since the epoch, None if unknown."""

    key: str
    reason: str
    exception: str
    location: str
    count: int = 0
    first: float | None = None
    last: float | None = None
    queues: Counter[str] = field(default_factory=Counter)
    #: The error text and the id of the last letter added.
    message: str = ""
    example: str = ""

    def add(self, letter: LetterSummary) -> None:
        """Count a letter."""
        self.count += 1
        self.queues[letter.cause.queue] += 1
        self.message, self.example = letter.error_message, letter.id
        for time in (letter.first_failed_at, letter.failed_at):
            if time is not None:
                self.first = time if self.first is None or time < self.first else self.first
                self.last = time if self.last is None or time > self.last else self.last


def group_letters(letters: Iterable[LetterSummary]) -> list[LetterGroup]:
    """Return the groups of the letters, the largest first."""
    groups: dict[str, LetterGroup] = {}
    for letter in letters:
        key = letter.group
        if key not in groups:
            cause = letter.cause
            groups[key] = LetterGroup(key, cause.reason, cause.exception, cause.location)
        groups[key].add(letter)
    return sorted(groups.values(), key=lambda group: -group.count)
