"""`perennial caa events`: list, show and requeue events of MusicBrainz's table, and pause the reader."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from app.cli.arguments import AsJson, DryRun, Why
from app.cli.context import operator_context
from app.cli.printing import iso, print_json, print_lines, print_result, printable
from app.coverart import event_table
from app.coverart.event_table import ArtEventRow, ArtEventState, Requeued
from app.operations import art

cli = typer.Typer(no_args_is_help=True, help="Events of MusicBrainz's table, and their reader.")


@cli.command("list")
def list_(
    state: Annotated[ArtEventState, typer.Option(help="Only events of this state.")] = "failed",
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List events of a state, the oldest first.

    The columns are id, type, action, runs, creation, last reason and message.
    """
    with art.open_table(operator_context()) as connection:
        events = event_table.list_events(connection, state, limit=limit)
    cells = (
        (each.id, each.entity, each.action, each.attempts, iso(each.created), "".join(each.reasons[-1:]), each.message)
        for each in events
    )
    if as_json:
        print_json(map(_as_json, events))
    elif not print_lines(cells):
        typer.echo(f"No event is {state}.", err=True)


@cli.command()
def show(ident: Annotated[int, typer.Argument(metavar="ID", help="An event.")], as_json: AsJson = False) -> None:
    """Show one event with the reason of each failed run."""
    with art.open_table(operator_context()) as connection:
        [event] = event_table.find_events(connection, [ident])
    lines = [f"{name}: {value}" for name, value in _as_json(event).items() if name != "reasons"]
    lines += [f"failed: {reason}" for reason in event.reasons]
    print_result(_as_json(event), "\n".join(map(printable, lines)), as_json=as_json)


@cli.command()
def requeue(
    ids: Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="Failed events.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All failed events.")] = False,
    dry_run: DryRun = False,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Queue failed events again with all their runs, and remove their dead letters."""
    if bool(ids) == every:
        raise typer.BadParameter("give IDs, or --all")
    print_requeued(art.requeue(operator_context(), ids, dry_run=dry_run, why=why), dry_run=dry_run, as_json=as_json)


@cli.command()
def pause(why: Why = "") -> None:
    """Publish no event until `resume`; jobs of published ones go on."""
    art.steer_reader(operator_context(), paused=True, why=why)
    typer.echo("the event reader is paused")


@cli.command()
def resume(why: Why = "") -> None:
    """Publish events again."""
    art.steer_reader(operator_context(), paused=False, why=why)
    typer.echo("the event reader is resumed")


def print_requeued(done: Requeued, *, dry_run: bool, as_json: bool) -> None:
    """Print what was queued again, or would be."""
    text = f"would be: {len(done.ids):,} events queued again" if dry_run else str(done)
    print_result({**asdict(done), "dry_run": dry_run}, text, as_json=as_json)


def _as_json(event: ArtEventRow) -> dict[str, object]:
    times = {name: iso(getattr(event, name)) for name in ("created", "last_updated")}
    return {**asdict(event), **times}
