"""`perennial dead edit`, `redirect` and `note`: replay letters changed, and write down what is known of one."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import click
import typer

from app.broker.dead_letters import DeadLetter
from app.broker.headers import ReplayBudget
from app.cli import dead_output as output
from app.cli.arguments import AsJson, Why
from app.cli.context import operations
from app.cli.printing import print_result
from app.operations.letters import (
    DONE,
    IdsBySet,
    LetterOrder,
    act_on_letters,
    add_note,
    editable,
    edited_body,
    find_letter,
)

OneId = Annotated[str, typer.Argument(metavar="ID", help="An id, or its beginning.")]
Budget = Annotated[ReplayBudget | None, typer.Option(help="As of `replay`.")]
Again = Annotated[bool, typer.Option("--again", help="As of `replay`.")]
Queue = Annotated[str, typer.Option("--queue", metavar="NAME", help="The queue, one of this application's.")]
Exchange = Annotated[str, typer.Option("--exchange", metavar="NAME", help="The exchange.")]
Key = Annotated[str, typer.Option("--key", metavar="KEY", help="The routing key.")]


def edit(
    ident: OneId,
    arguments: Annotated[
        str, typer.Option("--arguments", metavar="JSON", help="The new arguments, else those of standard input.")
    ] = "",
    content_type: Annotated[str, typer.Option("--content-type", metavar="TYPE", help="A new content type.")] = "",
    queue: Queue = "",
    exchange: Exchange = "",
    key: Key = "",
    budget: Budget = None,
    again: Again = False,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Replay a dead letter with other arguments; without them $EDITOR opens, or standard input is read."""
    ops = operations()
    letter = find_letter(ops.dead_sets, ident)
    body = edited_body(letter, arguments or _new_arguments(letter))
    order = LetterOrder(verb="edit", budget=budget, again=again, body=body, content_type=content_type or None)
    if queue or exchange or key:
        order = order.redirected(ops.settings, queue=queue, exchange=exchange, routing_key=key)
    _carry_out(order, {letter.set: [letter.id]}, why=why, as_json=as_json)


def redirect(
    idents: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids, or their beginnings.")],
    queue: Queue = "",
    exchange: Exchange = "",
    key: Key = "",
    budget: Budget = None,
    again: Again = False,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Replay dead letters to another queue, or to an exchange with a routing key."""
    ops = operations()
    order = LetterOrder(verb="redirect", budget=budget, again=again)
    order = order.redirected(ops.settings, queue=queue, exchange=exchange, routing_key=key)
    _carry_out(order, ops.dead_sets.choose(idents), why=why, as_json=as_json)


def note(
    ident: OneId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The note.")],
    as_json: AsJson = False,
) -> None:
    """Keep a note about a dead letter; the operations page shows it."""
    ops = operations()
    letter = find_letter(ops.dead_sets, ident)
    notes = add_note(ops, letter.id, text)
    result = {"id": letter.id, "notes": list(map(asdict, notes))}
    print_result(result, f"{letter.id}: {len(notes)} notes", as_json=as_json)


def _new_arguments(letter: DeadLetter) -> str:
    """Return what the user makes of the arguments; raises Exit if the user changes nothing."""
    if not sys.stdin.isatty():
        return sys.stdin.read()
    text = click.edit(editable(letter), extension=".json")
    if text is None:
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(1)
    return text


def _carry_out(order: LetterOrder, ids: IdsBySet, *, why: str, as_json: bool) -> None:
    subject = ", ".join(ident for listed in ids.values() for ident in listed)
    with output.progress(ids) as on_progress:
        result = act_on_letters(operations(), order, ids, subject=subject, why=why, on_progress=on_progress)
    output.exit_with_result(result, "replayed" if order.verb == "edit" else DONE[order.verb], as_json=as_json)
