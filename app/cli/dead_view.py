"""Dead messages for people and programs: tables that fit a terminal, lines with tabs, JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from rich.table import Table

from app.broker.dead_letters.exports import readable
from app.broker.dead_letters.letters import DeadLetter, LetterGroup
from app.broker.delivery import BROKER_HEADERS
from app.broker.headers import LAST_ERROR, OURS, REPLAY
from app.cli.printing import printable, short
from app.dead_sets import domain_of, task_of

#: What a line of `dead list` tells where it is no terminal.
COLUMNS = ("id", "queue", "reason", "attempts", "failed_at", "error", "set", "task", "domain", "group")

#: Width of a terminal from which there is room for more columns.
_WIDE = 110

#: Columns that stand to the right, and those that give way in a narrow terminal, in this order and down to this width.
_NUMBERS = ("age", "tries", "count", "first", "last")
_LEAST = {
    "error": 30,
    "message": 20,
    "domain": 16,
    "location": 18,
    "exception": 12,
    "task": 12,
    "set": 10,
    "reason": 10,
}


def fields(letter: DeadLetter) -> dict[str, Any]:
    """Return what is told of a message: text, but for `attempts`, a number."""
    cause = letter.cause
    return {
        "id": letter.id,
        "queue": letter.queue,
        "reason": letter.reason,
        "attempts": cause.attempts,
        "first_failed_at": iso(cause.first_failed_at),
        "failed_at": iso(cause.failed_at),
        "worker": cause.worker,
        "error": cause.error,
        "exception": cause.exception,
        "message": cause.message,
        "location": cause.location,
        "group": letter.group,
        "task": task_of(letter),
        "domain": domain_of(letter),
        "set": letter.set,
    }


def details(letter: DeadLetter) -> dict[str, Any]:
    """Return everything that a message is."""
    dead = letter.delivery
    properties = {name: value for name, value in dead.properties.items() if name != "application_headers"}
    return {
        **fields(letter),
        "exchange": dead.exchange,
        "routing_key": dead.routing_key,
        "former_lives": list(letter.replay_history),
        "arguments": letter.arguments(),
        "body": dead.body.decode(errors="replace"),
        "content_type": dead.content_type,
        "properties": properties,
        "headers": readable(dead.headers),
        "traceback": letter.cause.traceback,
    }


def group_fields(group: LetterGroup) -> dict[str, Any]:
    """Return what is told of a group."""
    return {
        "group": group.key,
        "count": group.count,
        "reason": group.reason,
        "exception": group.exception,
        "location": group.location,
        "first_seen": iso(group.first),
        "last_seen": iso(group.last),
        "queues": dict(group.queues),
        "message": group.message,
        "example": group.example,
    }


def letters_table(letters: Sequence[DeadLetter], width: int) -> Table:
    """Lay messages out, a line each: what does not fit is cut at the end of the error."""
    wide, several = width >= _WIDE, len({letter.set for letter in letters}) > 1
    rows = [
        {
            "id": short(letter.id),
            "age": age(letter.cause.failed_at),
            **({"failed at": _stamp(letter.cause.failed_at)} if wide else {}),
            **({"set": letter.set} if several else {}),
            "task": task_of(letter) or letter.queue or letter.delivery.routing_key,
            **({"domain": domain_of(letter)} if wide else {}),
            "reason": letter.reason,
            "tries": str(letter.cause.attempts or ""),
            "error": letter.cause.error,
        }
        for letter in letters
    ]
    return _table(rows, width)


def groups_table(groups: Sequence[LetterGroup], width: int) -> Table:
    """Lay groups out, a line each."""
    rows = [
        {
            "group": group.key,
            "count": f"{group.count:,}",
            "first": age(group.first),
            "last": age(group.last),
            "reason": group.reason,
            "exception": group.exception,
            "location": group.location,
            **({"message": group.message} if width >= _WIDE else {}),
        }
        for group in groups
    ]
    return _table(rows, width)


def page(letter: DeadLetter) -> Iterator[str]:
    """Yield the lines of everything there is to know of a message, its traceback at the end."""
    cause, dead = letter.cause, letter.delivery
    told = {
        "id": letter.id,
        "queue": letter.queue or "unknown",
        "reason": letter.reason,
        "attempts": cause.attempts,
        "error": cause.error,
        "location": cause.location,
        "group": letter.group,
        "task": task_of(letter),
        "domain": domain_of(letter),
        "first failed": _with_age(cause.first_failed_at),
        "failed": _with_age(cause.failed_at),
        "worker": cause.worker,
        "dead set": letter.set,
        "routing key": f"{dead.routing_key} (exchange {dead.exchange or 'default'})",
        "content type": dead.content_type,
        "former lives": ", ".join(letter.replay_history),
    }
    yield from (f"{name + ':':<17}{printable(str(value))}" for name, value in told.items() if value not in ("", None))
    yield from _part("arguments", _shown(letter.arguments()))
    yield from _part("headers", (f"{name}: {_value(value)}" for name, value in _other_headers(letter).items()))
    yield from _part("traceback", cause.traceback.splitlines())


def iso(seconds: float | None) -> str:
    """Return a time in UTC as ISO 8601, or an empty text."""
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def age(seconds: float | None) -> str:
    """Return how long ago a time was, in its largest unit."""
    if seconds is None:
        return ""
    past = max(0.0, time.time() - seconds)
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if past >= 2 * size or (unit != "d" and past >= size):
            return f"{past / size:.0f}{unit}"
    return f"{past:.0f}s"


def _table(rows: Sequence[Mapping[str, str]], width: int) -> Table:
    """Lay rows out. Columns are as wide as their longest cell, as far as there is room."""
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    excess = sum(widths.values()) + 2 * (len(widths) - 1) - width
    for name, least in _LEAST.items():
        if name in widths and excess > 0:
            cut = min(excess, max(0, widths[name] - least))
            widths[name] -= cut
            excess -= cut
    table = Table(box=None, pad_edge=False)
    for name in widths:
        side: Literal["left", "right"] = "right" if name in _NUMBERS else "left"
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify=side, width=widths[name])
    for row in rows:
        table.add_row(*(_plain(cell) for cell in row.values()))
    return table


def _plain(text: str) -> str:
    """Return a cell that is not read as markup."""
    return printable(text).replace("[", r"\[")


def _part(name: str, lines: Iterable[str]) -> Iterator[str]:
    shown = [f"  {printable(line)}".rstrip() for line in lines]
    if shown:
        yield f"{name}:"
        yield from shown


def _shown(arguments: Any) -> list[str]:
    if isinstance(arguments, str):
        return arguments.splitlines()
    return json.dumps(arguments, indent=2, ensure_ascii=False).splitlines()


def _other_headers(letter: DeadLetter) -> dict[str, Any]:
    """Return the headers that the rest of the page does not tell of, those of the broker last."""
    headers: dict[str, Any] = readable(letter.delivery.headers)
    broker = {name: value for name, value in headers.items() if name.startswith(BROKER_HEADERS)}
    told = {name for name in headers if name.startswith(OURS) and name not in (REPLAY, LAST_ERROR)}
    return {name: value for name, value in headers.items() if name not in told and name not in broker} | broker


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _stamp(seconds: float | None) -> str:
    return iso(seconds).replace("+00:00", "Z")


def _with_age(seconds: float | None) -> str:
    return f"{iso(seconds)} ({age(seconds)} ago)" if seconds is not None else ""
