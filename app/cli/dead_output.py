"""The output of `perennial dead`: tables that fit the terminal, lines with tabs, JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from rich.console import Console

from app.broker.dead_letters import ActResult, DeadLetter, LetterGroup, LetterSummary
from app.broker.dead_letters.exports import readable
from app.broker.delivery import BROKER_HEADERS
from app.broker.headers import LAST_ERROR, PREFIX, REPLAY
from app.cli.printing import iso, print_json, print_lines, print_result, printable, short
from app.cli.progress import shown_progress
from app.cli.tables import table
from app.messages.dead_sets import domain_of, task_of
from app.text.humanize import duration

#: Letters shown on a terminal unless --limit says otherwise.
SCREENFUL = 50

#: The columns of `dead list` where standard output is not a terminal.
COLUMNS = ("id", "queue", "reason", "attempts", "failed_at", "error", "set", "task", "domain", "group")

#: Characters of a terminal's width from which more columns are shown.
_WIDE = 110

#: Right-aligned columns.
_NUMBERS = ("age", "tries", "count", "first", "last")

#: Other columns that are never narrowed.
_WHOLE = ("id", "group", "failed at")

#: Fields that `dead show` has in sections of their own, or within others.
_NOT_ON_PAGE = ("exception", "message", "arguments", "body", "properties", "headers", "traceback")

# Printing


def print_letters(letters: Iterable[LetterSummary], *, as_json: bool, empty: str = "") -> None:
    """Print letters as JSON or as lines with tabs; without JSON print `empty` instead of no letters."""
    if as_json:
        print_json(map(fields, letters))
    elif not print_lines([fields(letter)[name] for name in COLUMNS] for letter in letters) and empty:
        typer.echo(empty)


def print_table(shown: Sequence[LetterSummary], *, empty: str, total: int) -> None:
    """Print letters as a table, and how many more of `total` there are."""
    terminal = Console(highlight=False)
    if not shown:
        terminal.print(empty)
        return
    wide, several_sets = terminal.width >= _WIDE, len({letter.set for letter in shown}) > 1
    rows = [
        {
            "id": short(letter.id),
            "age": age(letter.failed_at),
            **({"failed at": iso(letter.failed_at).replace("+00:00", "Z")} if wide else {}),
            **({"set": letter.set} if several_sets else {}),
            "task": task_of(letter) or letter.queue or letter.routing_key,
            **({"domain": domain_of(letter)} if wide else {}),
            "reason": letter.reason,
            "tries": str(letter.cause.attempts or ""),
            "error": letter.error,
        }
        for letter in shown
    ]
    terminal.print(table(rows, whole=_WHOLE, numbers=_NUMBERS))
    if total > len(shown):
        terminal.print(f"{len(shown):,} of {total:,} shown; --limit shows more, --groups counts causes.")


def print_groups(groups: Sequence[LetterGroup], *, as_json: bool, empty: str) -> None:
    """Print groups as JSON, as a table on a terminal, else as lines with tabs."""
    if as_json:
        print_json(map(group_fields, groups))
    elif not groups:
        typer.echo(empty)
    elif not sys.stdout.isatty():
        print_lines(list({**group_fields(group), "queues": ",".join(group.queues)}.values()) for group in groups)
    else:
        terminal = Console(highlight=False)
        rows = [
            {
                "group": group.key,
                "count": f"{group.count:,}",
                "first": age(group.first),
                "last": age(group.last),
                "reason": group.reason,
                "exception": group.exception,
                "location": group.location,
                **({"message": group.message} if terminal.width >= _WIDE else {}),
            }
            for group in groups
        ]
        terminal.print(table(rows, whole=_WHOLE, numbers=_NUMBERS))


@contextmanager
def progress(ids: Mapping[str, Sequence[str]]) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows on a terminal how many of these ids are done."""
    done, total = 0, sum(map(len, ids.values()))
    console = Console(stderr=True, highlight=False, quiet=not sys.stderr.isatty())
    with shown_progress(console, lambda: (f"{done:,} of {total:,}", done, total), line_every=0.0) as show:

        def show_count(count: int) -> None:
            nonlocal done
            done = count
            show()

        yield show_count


def exit_with_result(result: ActResult, verb: str, *, as_json: bool, **details: Any) -> NoReturn:
    """Print the result of an operation and exit, with 1 if it is incomplete; what was not done is text on stderr."""
    notes = [f"{short(letter_id)} stays: {printable(reason)}" for letter_id, reason in result.stayed.items()]
    notes += [f"{short(letter_id)} is no longer there" for letter_id in result.missing]
    notes += [f"stopped: {printable(result.stopped)}"] if result.stopped else []
    for note in () if as_json else notes:
        typer.echo(note, err=True)
    outcome = {verb: result.done, "stayed": result.stayed, "missing": result.missing, "stopped": result.stopped}
    text = f"{len(result.done):,} {verb}" + "".join(f"; {name}: {value}" for name, value in details.items())
    print_result(outcome | details, text, as_json=as_json)
    raise typer.Exit(0 if result.complete else 1)


# Values


def fields(letter: LetterSummary) -> dict[str, Any]:
    """Return the fields of a letter in a list: text, except for the number `attempts`."""
    cause = letter.cause
    return {
        "id": letter.id,
        "queue": letter.queue,
        "reason": letter.reason,
        "attempts": cause.attempts,
        "first_failed_at": iso(letter.first_failed_at),
        "failed_at": iso(letter.failed_at),
        "worker": cause.worker,
        "error": letter.error,
        "exception": cause.exception,
        "message": letter.error_message,
        "location": cause.location,
        "group": letter.group,
        "task": task_of(letter),
        "domain": domain_of(letter),
        "set": letter.set,
    }


def details(letter: DeadLetter) -> dict[str, Any]:
    """Return all fields of a letter, with its message."""
    delivery = letter.delivery
    properties = {name: value for name, value in delivery.properties.items() if name != "application_headers"}
    return {
        **fields(letter),
        "exchange": delivery.exchange,
        "routing_key": delivery.routing_key,
        "replay_history": list(letter.replay_history),
        "arguments": letter.arguments(),
        "body": delivery.body.decode(errors="replace"),
        "content_type": delivery.content_type,
        "properties": properties,
        "headers": readable(delivery.headers),
        "traceback": letter.traceback,
    }


def group_fields(group: LetterGroup) -> dict[str, Any]:
    """Return the fields of a group."""
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


# Text


def page(letter: DeadLetter) -> Iterator[str]:
    """Yield the lines of `dead show`: the fields that are not empty, then arguments, headers and traceback."""
    for name, value in details(letter).items():
        if name not in _NOT_ON_PAGE and value not in ("", None, []):
            text = ", ".join(value) if isinstance(value, list) else str(value)
            yield f"{name.replace('_', ' ') + ':':<17}{printable(text)}"
    arguments = letter.arguments()
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, indent=2, ensure_ascii=False)
    yield from _section("arguments", text.splitlines())
    headers: dict[str, Any] = readable(letter.delivery.headers)
    # Those that the page does not show elsewhere, the broker's last.
    others = [name for name in headers if not name.startswith(PREFIX) or name in (REPLAY, LAST_ERROR)]
    lines = []
    for name in sorted(others, key=lambda name: name.startswith(BROKER_HEADERS)):
        value = headers[name]
        lines.append(f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    yield from _section("headers", lines)
    yield from _section("traceback", letter.traceback.splitlines())


def age(seconds: float | None) -> str:
    """Return how long ago an epoch time was; empty for None."""
    return "" if seconds is None else duration(max(0.0, time.time() - seconds))


def _section(name: str, lines: Iterable[str]) -> Iterator[str]:
    indented = [f"  {printable(line)}".rstrip() for line in lines]
    if indented:
        yield f"{name}:"
        yield from indented
