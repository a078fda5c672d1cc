"""`perennial dead`: look at what failed for good, and send it back."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from app.amqp.publish import get_publisher
from app.errors import InvalidMessage
from app.retry.dead_letters import DeadLetter, DeadSet
from app.topology import site_policy
from config.settings import get_settings

dead = typer.Typer(no_args_is_help=True, help="Messages that spent their retries.")

#: What `dead list` tells of a message.
COLUMNS = ("id", "queue", "reason", "attempts", "failed_at", "error")

#: Digits of an id that are shown on a terminal.
_SHORT = 8

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dead.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the dead set, oldest first. Looking changes nothing."""
    letters = _dead_set().look()
    if as_json:
        typer.echo(json.dumps([_fields(letter) for letter in letters]))
        return
    rows = [[str(_fields(letter)[name]) for name in COLUMNS] for letter in letters]
    console = Console()
    if not rows:
        console.print("The dead set is empty.")
    elif console.is_terminal:
        console.print(_table(rows))
    else:
        for row in rows:
            typer.echo("\t".join(row))


@dead.command()
def show(
    ident: Annotated[str, typer.Argument(metavar="ID", help="An id, or its beginning.")], as_json: AsJson = False
) -> None:
    """Show one dead message: body, headers, error, traceback."""
    letter = _one(_dead_set().look(), ident)
    fields = {**_fields(letter), "body": letter.delivery.body.decode(errors="replace")}
    if as_json:
        typer.echo(json.dumps({**fields, "headers": {k: str(v) for k, v in letter.delivery.headers.items()}}))
        return
    for name, value in fields.items():
        typer.echo(f"{name + ':':<17}{value}")
    typer.echo(str(letter.header("traceback")))


@dead.command()
def replay(
    idents: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids, or their beginnings.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Replay the whole dead set.")] = False,
    budget: Annotated[str, typer.Option(help="`keep`: not retried again. `fresh`: with a new retry budget.")] = "keep",
    as_json: AsJson = False,
) -> None:
    """Send dead messages back to their queues: confirmed there, then taken from the dead set."""
    if budget not in ("keep", "fresh"):
        raise typer.BadParameter(f"--budget {budget!r}: expected keep or fresh")
    if bool(idents) == every:
        raise typer.BadParameter("give message ids, or --all")
    dead_set = _dead_set()
    there = dead_set.look() if idents else []
    wanted = {_one(there, ident).id for ident in idents or ()}
    letters = dead_set.replay(lambda letter: every or letter.id in wanted, fresh=budget == "fresh")
    typer.echo(json.dumps([letter.id for letter in letters]) if as_json else f"{len(letters)} replayed")


def _table(rows: list[list[str]]) -> Table:
    """Lay the list out, a line a message: the beginning of an id is enough to name it."""
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name.replace("_", " "), no_wrap=True, overflow="ellipsis")
    for ident, *row in rows:
        table.add_row(ident[:_SHORT], *row)
    return table


def _dead_set() -> DeadSet:
    settings = get_settings()
    return DeadSet(
        settings.broker, site_policy(settings), get_publisher(settings.broker, timeout=settings.publish_timeout)
    )


def _one(letters: list[DeadLetter], ident: str) -> DeadLetter:
    found = [letter for letter in letters if letter.id.startswith(ident)]
    if len(found) != 1:
        raise InvalidMessage(f"{ident!r} names {len(found)} of the {len(letters)} dead messages")
    return found[0]


def _fields(letter: DeadLetter) -> dict[str, Any]:
    error = f"{letter.header('exception')}: {letter.header('message')}".strip(": ")
    return {
        "id": letter.id,
        "queue": letter.queue,
        "reason": letter.reason,
        "attempts": letter.header("attempts") or 0,
        "first_failed_at": _time(letter.header("first-failed-at")),
        "failed_at": _time(letter.header("failed-at")),
        "worker": letter.header("worker"),
        "error": error,
    }


def _time(seconds: Any) -> str:
    return (
        datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if isinstance(seconds, int | float) else ""
    )
