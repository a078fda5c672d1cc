"""Queries of dead letters: filters as operators write them, groups with a trend, the newest letters, and attempts."""

from __future__ import annotations

import hashlib
import heapq
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field

from app.broker.dead_letters import EVERYTHING, DeadLetter, DeadSets, LetterGroup, LetterSummary
from app.broker.dead_letters.causes import epoch_seconds
from app.broker.errors import InvalidMessage
from app.broker.headers import deaths, whole_number
from app.messages.dead_sets import domain_of, task_of, where
from app.text.humanize import cut, parse_duration
from app.topology.retry_policies import retry_policies
from config.settings import Settings

#: Hours of a group's trend, and seconds of one.
TREND_HOURS: Final = 24
_HOUR: Final = 3_600
#: Characters of a text in a list, and of a filter, which must match what is listed.
MAX_TEXT: Final = 300
#: Groups that are listed, the newest ones. A sender of messages chooses reasons and errors freely.
MAX_GROUPS: Final = 100

#: Letters of a group whose errors are compared to find the most frequent one: a fourth of the time of a long list.
_COMPARED: Final = 1_000

#: What differs between errors with one cause, and what is shown in its place. URLs come first: they contain numbers.
_VARIABLE: Final = re.compile(
    r"(?P<URL>\b[a-z][a-z0-9+.-]{1,20}://[^\s'\"<>)\]]+)"
    r"|(?P<ID>\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b(?=[a-f]*\d)[0-9a-f]{12,64}\b)"
    r"|(?P<N>(?<![A-Za-z_])\d+(?:[.:]\d+)*)",
    re.IGNORECASE,
)


_Text = Annotated[str, Field(max_length=MAX_TEXT)]


class LetterQuery(BaseModel):
    """Filters of dead letters as texts. All that are given must match; empty ones match all.

    A `group` is also a key as `cause_key` returns it. Times without an offset are in UTC.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)

    text: _Text = Field("", description="A part of the error, the names, the id or the body.")
    set: _Text = Field("", description="The dead set.", examples=["site.dead"])
    queue: _Text = Field("", description="The queue from which it was consumed.", examples=["site.index"])
    task: _Text = Field("", description="The task.", examples=["site.index"])
    domain: _Text = Field("", description="The site that it is about.")
    worker: _Text = Field("", description="The worker of its last run.")
    reason: _Text = Field("", description="The reason code.", examples=["server-error"])
    exception: _Text = Field("", description="The exception's name.")
    group: _Text = Field("", description="The key of a group.")
    after: _Text = Field("", description="Dead for less than an age such as `2h`, or since a time (ISO 8601).")
    before: _Text = Field("", description="Dead for longer than an age, or before a time.")
    act: _Text = Field("", description="The id of an act: its letters that died again.")

    def __str__(self) -> str:
        """Name the given filters, for the audit."""
        return ", ".join(f"{name} {value}" for name, value in self.given().items()) or "all"

    def given(self) -> dict[str, str]:
        """Return the filters that are not empty."""
        return {name: value for name in LetterQuery.model_fields if (value := getattr(self, name))}

    def address(self, path: str, **others: Any) -> str:
        """Return a path with the filters as its query."""
        query = urlencode(self.given() | {name: value for name, value in others.items() if value}, errors="replace")
        return f"{path}?{query}" if query else path

    def condition(self) -> Callable[[LetterSummary], bool]:
        """Return the condition of all filters but `text` and `act`. Raises InvalidMessage and InvalidUrl."""
        if self.given().keys() <= {"text", "act"}:
            return EVERYTHING
        matches = where(
            task=self.task,
            domain=self.domain,
            reason=self.reason,
            exception=self.exception,
            after=parse_time(self.after) if self.after else None,
            before=parse_time(self.before) if self.before else None,
        )

        def condition(letter: LetterSummary) -> bool:
            return (
                self.set in ("", letter.set)
                and self.queue in ("", letter.queue)
                and self.worker in ("", letter.cause.worker)
                and (not self.group or self.group in (letter.group, cause_key(letter)))
                and matches(letter)
            )

        return condition

    def matching(self, sets: DeadSets, *, of_act: Collection[str] = ()) -> Iterator[LetterSummary]:
        """Yield what matches, oldest first; `of_act` are the ids of the act's letters. Raises as `condition` does.

        Whole messages are read only for the filters that need them.
        """
        if not self.text and not self.act:
            with closing(sets.iter_summaries(self.condition())) as summaries:
                yield from summaries
            return
        text, ids = self.text.casefold(), frozenset(of_act)
        with closing(sets.iter_letters(self.condition())) as letters:
            for letter in letters:
                if self.act and ids.isdisjoint(letter.replay_history):
                    continue
                cause, message = letter.cause, letter.delivery
                names = (letter.id, letter.error, cause.reason, cause.queue, task_of(letter), message.routing_key)
                if (
                    any(text in name.casefold() for name in names)
                    or text in message.body.decode(errors="replace").casefold()
                ):
                    yield letter


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterRow:
    """What a list shows of a letter. Texts are cut. Times are seconds since the epoch."""

    id: str
    set: str
    queue: str
    task: str
    domain: str
    reason: str
    error: str
    group: str
    worker: str
    attempts: int
    first_failed_at: float | None
    failed_at: float | None

    @property
    def ref(self) -> str:
        """Dead set and id, which name the letter without a search."""
        return f"{self.set}/{self.id}"


@dataclass(slots=True, kw_only=True)
class CauseGroup(LetterGroup):
    """Letters of one task with the same reason, exception and location; its key is that of `cause_key`.

    `hours` counts deaths in each of the last TREND_HOURS hours, the present one last.
    """

    task: str
    hours: list[int] = field(default_factory=lambda: [0] * TREND_HOURS)
    #: Errors of the first _COMPARED letters, without what varies, with their numbers.
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def error(self) -> str:
        """The most frequent error, without what varies."""
        return next((text for text, _ in self.errors.most_common(1)), "")

    def as_json(self) -> dict[str, Any]:
        """Return the fields for JSON, with the most frequent error as `error`."""
        names = ("task", "reason", "exception", "location", "count", "first", "last", "hours")
        queues = {cut(name, MAX_TEXT): number for name, number in self.queues.items()}
        return {name: getattr(self, name) for name in names} | {
            "group": self.key,
            "queues": queues,
            "error": self.error,
        }

    def count_death(self, letter: LetterSummary, now: float) -> None:
        """Count a letter, its error and the hour of its death."""
        self.add(letter)
        if self.count <= _COMPARED:
            error = normalised(letter.error_message)
            if error in self.errors or len(self.errors) < MAX_GROUPS:
                self.errors[error] += 1
        if letter.failed_at is not None:
            hours_ago = int(max(0.0, now - letter.failed_at) // _HOUR)
            if hours_ago < TREND_HOURS:
                self.hours[-1 - hours_ago] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterSurvey:
    """All letters of a query: their number, the newest groups, one page of rows, and the values of the filters."""

    total: int
    groups: list[CauseGroup]
    group_count: int
    rows: list[LetterRow]
    queues: list[str]
    tasks: list[str]
    reasons: list[str]


def survey(letters: Iterable[LetterSummary], *, offset: int, limit: int) -> LetterSurvey:
    """Return what there is to list of letters: `limit` rows after `offset`, the newest first. Each is read once."""
    now = time.time()
    groups: dict[tuple[str, str], CauseGroup] = {}

    def ranked() -> Iterator[tuple[float, int, LetterRow | LetterSummary]]:
        """Count each letter and yield it, so that the newest ones are kept: of a whole letter only its row."""
        for number, letter in enumerate(letters):
            task = task_of(letter)
            group = groups.get((task, letter.cause.group))
            if group is None:
                group = groups[task, letter.cause.group] = _empty_group(task, letter)
            group.count_death(letter, now)
            yield letter.failed_at or 0.0, number, row_of(letter) if isinstance(letter, DeadLetter) else letter

    # Of no letters, `nlargest` would read none.
    newest = heapq.nlargest(max(1, offset + limit), ranked(), key=lambda each: each[:2])
    newest_groups = sorted(groups.values(), key=lambda group: (group.last or 0.0, group.count), reverse=True)
    return LetterSurvey(
        total=sum(group.count for group in groups.values()),
        groups=newest_groups[:MAX_GROUPS],
        group_count=len(groups),
        rows=[each if isinstance(each, LetterRow) else row_of(each) for _, _, each in newest[offset : offset + limit]],
        queues=sorted({cut(queue, MAX_TEXT) for group in groups.values() for queue in group.queues if queue})[
            :MAX_GROUPS
        ],
        tasks=sorted({group.task for group in groups.values() if group.task})[:MAX_GROUPS],
        reasons=sorted({group.reason for group in groups.values()})[:MAX_GROUPS],
    )


def _empty_group(task: str, letter: LetterSummary) -> CauseGroup:
    cause = letter.cause
    return CauseGroup(
        key=cause_key(letter),
        task=cut(task, MAX_TEXT),
        reason=cut(cause.reason, MAX_TEXT),
        exception=cut(cause.exception, MAX_TEXT),
        location=cut(cause.location, MAX_TEXT),
    )


def cause_key(letter: LetterSummary) -> str:
    """Return the key of a letter's group, with four hex digits of its task: an address can hold them as they are."""
    task = hashlib.blake2b(task_of(letter).encode(errors="replace"), digest_size=2).hexdigest()
    return f"{letter.group}-{task}"


def row_of(letter: LetterSummary) -> LetterRow:
    """Return what a list shows of a letter."""
    cause = letter.cause
    return LetterRow(
        id=letter.id,
        set=letter.set,
        queue=cut(letter.queue, MAX_TEXT),
        task=cut(task_of(letter), MAX_TEXT),
        domain=cut(domain_of(letter), MAX_TEXT),
        reason=cut(cause.reason, MAX_TEXT),
        error=cut(letter.error, MAX_TEXT),
        group=letter.group,
        worker=cut(cause.worker, MAX_TEXT),
        attempts=cause.attempts,
        first_failed_at=letter.first_failed_at,
        failed_at=letter.failed_at,
    )


def normalised(error: str) -> str:
    """Return an error with URLs, ids and numbers replaced by `URL`, `ID` and `N`."""
    return _VARIABLE.sub(lambda match: str(match.lastgroup), error[: 2 * MAX_TEXT])[:MAX_TEXT]


def parse_time(text: str) -> float:
    """Return the time of an age such as `2h`, or of ISO 8601, in seconds since the epoch; raises InvalidMessage."""
    age = parse_duration(text.strip())
    if age is not None:
        return time.time() - age
    try:
        moment = datetime.fromisoformat(text.strip())
        return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        raise InvalidMessage(f"time {text[:40]!r}: expected an age such as 2h, or 2026-11-25T10:00 (UTC)") from None


# The attempts of a letter in time, from its headers and the waits of its retry policy

#: Attempts and broker's deaths that are shown: a sender chooses the numbers in a header.
MAX_SHOWN: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One failed run: when, in seconds since the epoch, and how many seconds it waited before, by the policy.

    Only the times of the first and the last run are in the message. Those between are `estimated`: the waits, added up.
    """

    number: int
    at: float | None
    wait: float
    estimated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDeath:
    """An entry of `x-death`: how often the broker dead-lettered the message from a queue, and when first."""

    queue: str
    reason: str
    count: int
    exchange: str
    at: float | None


def attempts_of(letter: DeadLetter, settings: Settings) -> list[Attempt]:
    """Return the failed runs of a letter, the first ones where there are too many to show."""
    cause = letter.cause
    policy = retry_policies(settings).policy_for(letter.queue)
    number = min(cause.attempts, MAX_SHOWN)
    waits = [0.0, *(policy.wait_ms(letter.delivery, run) / 1_000 for run in range(1, number))][:number]
    first, last = letter.first_failed_at, letter.failed_at
    found = []
    for run, (wait, since) in enumerate(zip(waits, accumulate(waits), strict=True), 1):
        is_known = run in (1, cause.attempts)
        at = (last if run == cause.attempts else first) if is_known else None
        if not is_known and first is not None:
            at = first + since if last is None else min(first + since, last)
        found.append(Attempt(number=run, at=at, wait=wait, estimated=not is_known))
    return found


def broker_deaths(letter: DeadLetter) -> list[BrokerDeath]:
    """Return what the broker noted in `x-death`, the latest first."""
    return [
        BrokerDeath(
            queue=str(entry.get("queue", "")),
            reason=str(entry.get("reason", "")),
            count=whole_number(entry, "count", default=1),
            exchange=str(entry.get("exchange", "")),
            at=epoch_seconds(entry.get("time")),
        )
        for entry in deaths(letter.delivery)[:MAX_SHOWN]
    ]
