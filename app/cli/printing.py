"""What every command prints with: JSON, lines with tabs between cells, and text without escape codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import typer

#: Digits of an id that are shown on a terminal.
_SHORT = 8


def print_json(items: Iterable[Any]) -> bool:
    """Print an array, an item at a time; return whether there were any."""
    typer.echo("[", nl=False)
    number = -1
    for number, item in enumerate(items):
        typer.echo((",\n" if number else "") + json.dumps(item), nl=False)
    typer.echo("]")
    return number >= 0


def print_lines(rows: Iterable[Sequence[Any]]) -> bool:
    """Print rows with tabs between their cells; return whether there were any."""
    found = False
    for row in rows:
        typer.echo("\t".join(printable(str(cell)) for cell in row))
        found = True
    return found


def print_result(value: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    """Print what a command did: as JSON, or as text for people."""
    typer.echo(json.dumps(value, default=str) if as_json else text)


def confirm(question: str, *, without_terminal: str = "standard input is not a terminal: confirm with --yes") -> None:
    """Put a question to the user; raises Exit for a no, or BadParameter with `without_terminal` without a terminal."""
    if not sys.stdin.isatty():
        raise typer.BadParameter(without_terminal)
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def short(ident: str) -> str:
    """Return the beginning of an id, with the number of a twin: enough to name it."""
    base, dot, number = ident.partition(".")
    return base[:_SHORT] + dot + number


def iso(seconds: float | None) -> str:
    """Return an epoch time as ISO 8601 in UTC, empty for None."""
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def printable(text: str) -> str:
    """Return a text on one line, without what a terminal would obey: a message must not write escape sequences."""
    return "".join(character if character.isprintable() else " " for character in text)
