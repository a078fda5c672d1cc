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
from config.settings import get_settings

dead = typer.Typer(no_args_is_help=True, help="Messages that spent their retries.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dead.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the dead set, oldest first. Looking changes nothing."""
    letters = _dead_set().look()
    if as_json:
        typer.echo(json.dumps([_fields(letter) for letter in letters]))
        return
    table = Table("id", "queue", "reason", "attempts", "failed", "error")
    for letter in letters:
        row = _fields(letter)
        table.add_row(row["id"], row["queue"], row["reason"], str(row["attempts"]), row["failed_at"], row["error"])
    Console().print(table if letters else "The dead set is empty.")


@dead.command()
def show(ident: Annotated[str, typer.Argument(metavar="ID")], as_json: AsJson = False) -> None:
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
    idents: Annotated[list[str] | None, typer.Argument(metavar="[ID]...")] = None,
    every: Annotated[bool, typer.Option("--all", help="Replay the whole dead set.")] = False,
    budget: Annotated[str, typer.Option(help="`keep`: not retried again. `fresh`: with a new retry budget.")] = "keep",
    as_json: AsJson = False,
) -> None:
    """Send dead messages back to their queues: confirmed there, then taken from the dead set."""
    if budget not in ("keep", "fresh"):
        raise typer.BadParameter(f"--budget {budget!r}: expected keep or fresh")
    if bool(idents) == every:
        raise typer.BadParameter("give message ids, or --all")
    wanted = set(idents or ())
    letters = _dead_set().replay(lambda letter: every or letter.id in wanted, fresh=budget == "fresh")
    missing = wanted - {letter.id for letter in letters}
    typer.echo(json.dumps([letter.id for letter in letters]) if as_json else f"{len(letters)} replayed")
    if missing:
        raise InvalidMessage(f"not in the dead set: {', '.join(sorted(missing))}")


def _dead_set() -> DeadSet:
    settings = get_settings()
    return DeadSet(settings, get_publisher(settings.broker, timeout=settings.publish_timeout))


def _one(letters: list[DeadLetter], ident: str) -> DeadLetter:
    for letter in letters:
        if letter.id == ident:
            return letter
    raise InvalidMessage(f"{ident!r} is not in the dead set of {len(letters)}")


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
