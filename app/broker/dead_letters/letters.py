"""What a dead message is, which ones are meant, and how many are alike."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ..delivery import Delivery
from ..headers import DEAD_ID, REPLAY_HISTORY
from .causes import Cause, cause_of

#: An id that we gave, and no garbage in its header.
_GIVEN = re.compile(r"[0-9A-Za-z-]{8,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead message of the dead set `set`.

    `id` is its `perennial-dead-id`, or a hash of its content where others put it there. Messages with the same one are
    told apart by their place, as `id`, `id.2`, `id.3`: stable while nothing before them leaves.
    """

    id: str
    set: str
    delivery: Delivery
    cause: Cause

    @property
    def queue(self) -> str:
        """The queue that it died in and is replayed to; empty where its key led to none."""
        return self.cause.queue

    @property
    def reason(self) -> str:
        """The reason code."""
        return self.cause.reason

    @property
    def group(self) -> str:
        """Eight hex digits of reason, exception and location: what died alike has the same."""
        alike = "\0".join((self.cause.reason, self.cause.exception, self.cause.location))
        return hashlib.blake2b(alike.encode(errors="replace"), digest_size=4).hexdigest()

    @property
    def replay_history(self) -> tuple[str, ...]:
        """Dead ids of its former lives, the last one first."""
        lives = self.delivery.headers.get(REPLAY_HISTORY)
        return tuple(str(each) for each in lives) if isinstance(lives, list) else ()

    def header(self, name: str) -> Any:
        """Return one of the headers of the death, named without `perennial-`."""
        return self.delivery.headers.get(f"perennial-{name}", "")

    def arguments(self) -> Any:
        """Return what the message asks for: Celery's [args, kwargs], else its JSON, else its body as text."""
        try:
            value = json.loads(self.delivery.body)
        except (ValueError, RecursionError):
            return self.delivery.body.decode(errors="replace")
        celery = "task" in self.delivery.headers and isinstance(value, list) and len(value) == 3
        return value[:2] if celery else value


class LetterIds:
    """Names the messages of a dead set in their order. `gone` counts those that left since the first was named."""

    def __init__(self, gone: Counter[str] | None = None) -> None:
        self._seen: Counter[str] = Counter(gone or {})

    def name(self, set_name: str, delivery: Delivery) -> str:
        """Return the id of the next message."""
        base = base_of(set_name, delivery)
        self._seen[base] += 1
        return base if self._seen[base] == 1 else f"{base}.{self._seen[base]}"


def base_of(set_name: str, delivery: Delivery) -> str:
    """Return the dead id that a message carries, or 16 hex digits of its dead set, routing key and body."""
    given = delivery.headers.get(DEAD_ID)
    if isinstance(given, str) and _GIVEN.fullmatch(given):
        return given
    digest = hashlib.blake2b(digest_size=8)
    for part in (set_name.encode(), delivery.routing_key.encode(errors="replace"), delivery.body):
        digest.update(part + b"\0")
    return digest.hexdigest()


def letter_of(delivery: Delivery, set_name: str, names: LetterIds) -> DeadLetter:
    """Return the dead message that a delivery from a dead set is."""
    return DeadLetter(id=names.name(set_name, delivery), set=set_name, delivery=delivery, cause=cause_of(delivery))


def named(ident: str, typed: str) -> bool:
    """Return whether an id is the one that somebody typed: all of it, or its beginning, with the number of its twin."""
    base, _, twin = ident.partition(".")
    beginning, _, number = typed.partition(".")
    return bool(beginning) and base.startswith(beginning) and (twin or "1") == (number or "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Which dead messages are meant: all that agree with everything that is said.

    `task`, `reason` and `exception` are compared as they stand; `before` and `after` are seconds since the epoch, and
    a message whose time of death nobody told agrees with neither. `also` is any further condition.
    """

    task: str = ""
    reason: str = ""
    exception: str = ""
    group: str = ""
    before: float | None = None
    after: float | None = None
    also: Callable[[DeadLetter], bool] | None = None

    def __call__(self, letter: DeadLetter) -> bool:
        """Return whether this one is meant."""
        cause = letter.cause
        return (
            self.task in ("", cause.task)
            and self.reason in ("", cause.reason)
            and self.exception in ("", cause.exception)
            and self.group in ("", letter.group)
            and (self.before is None or (cause.failed_at is not None and cause.failed_at < self.before))
            and (self.after is None or (cause.failed_at is not None and cause.failed_at >= self.after))
            and (self.also is None or self.also(letter))
        )


#: All of them.
EVERYTHING = LetterFilter()


@dataclass(slots=True)
class LetterGroup:
    """Messages that died alike. Times are seconds since the epoch, None where no message tells."""

    key: str
    reason: str
    exception: str
    location: str
    count: int = 0
    first: float | None = None
    last: float | None = None
    queues: Counter[str] = field(default_factory=Counter)
    #: The latest error's text, and the id of its message.
    message: str = ""
    example: str = ""

    def add(self, letter: DeadLetter) -> None:
        """Count one more."""
        cause = letter.cause
        self.count += 1
        self.queues[letter.queue] += 1
        self.message, self.example = cause.message, letter.id
        times = [each for each in (cause.first_failed_at, cause.failed_at) if each is not None]
        self.first = min([*times, *([] if self.first is None else [self.first])], default=None)
        self.last = max([*times, *([] if self.last is None else [self.last])], default=None)


def group_letters(letters: Iterable[DeadLetter]) -> list[LetterGroup]:
    """Return the groups of these messages, the largest first."""
    found: dict[str, LetterGroup] = {}
    for letter in letters:
        cause = letter.cause
        new = LetterGroup(letter.group, cause.reason, cause.exception, cause.location)
        found.setdefault(letter.group, new).add(letter)
    return sorted(found.values(), key=lambda group: -group.count)
