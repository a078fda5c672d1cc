"""The command `celery -A yours dead`: the dead letters of an application that called `install`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import click

from .dead_letters import ActResult, DeadSets, ReplayOptions, read_export
from .dead_letters.exports import readable
from .dead_letters.letters import EVERYTHING, LetterFilter
from .errors import ApplicationError, InvalidMessage
from .worker.install import dead_sets


class ReportingGroup(click.Group):
    """A group whose commands print an error of this package as one line."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except ApplicationError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=ReportingGroup, help="List, show, replay and drop messages that spent their retries.")
@click.pass_context
def dead(context: click.Context) -> None:
    """Give the commands the dead sets of the application that `-A` names."""
    app = context.obj.app
    if not hasattr(app, "retries"):
        raise click.UsageError(f"the application {app.main} has no retry policies: it never called install()")
    context.obj = dead_sets(app)


@dead.command("list")
@click.option("--groups", is_flag=True, help="Their causes, with the number of letters of each.")
@click.option("--limit", type=click.IntRange(min=1), help="At most this many, of each dead set or of groups.")
@click.pass_obj
def list_(sets: DeadSets, groups: bool, limit: int | None) -> None:
    """List dead letters, oldest first, as lines with tabs. Reading changes nothing."""
    if groups:
        for group in sets.groups()[:limit]:
            _print_line(group.key, group.count, group.reason, f"{group.exception}: {group.message}")
        return
    for letter in sets.summaries(limit=limit):
        at, attempts = letter.failed_at, letter.cause.attempts
        failed_at = "" if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
        _print_line(letter.id, letter.queue, letter.reason, attempts, failed_at, letter.error)


@dead.command()
@click.argument("ident", metavar="ID")
@click.pass_obj
def show(sets: DeadSets, ident: str) -> None:
    """Show one dead letter as JSON; ID may be the beginning of its id."""
    [letter] = sets.find([ident])
    headers = readable(letter.delivery.headers)
    click.echo(json.dumps({"id": letter.id, "arguments": letter.arguments(), "headers": headers}, indent=2))


_idents = click.argument("idents", metavar="[ID]...", nargs=-1)
_group = click.option("--group", default="", metavar="KEY", help="Those of one cause, as `list --groups` names it.")
_all = click.option("--all", "every", is_flag=True, help="Every dead letter.")


@dead.command()
@_idents
@_group
@_all
@click.option("--budget", type=click.Choice(["keep", "fresh"]), help="`keep`: no more retries; `fresh`: all of them.")
@click.option("--canary", type=float, metavar="SECONDS", help="One first; the others if it succeeds in this time.")
@click.pass_obj
def replay(sets: DeadSets, idents: tuple[str, ...], group: str, every: bool, budget: Any, canary: float | None) -> None:
    """Send dead letters back to their queues: confirmed there, then removed from the dead set."""
    options = ReplayOptions(budget=budget, canary=canary)
    _exit_with(sets.replay(_chosen(sets, idents, group, every), options), "replayed")


@dead.command()
@_idents
@_group
@_all
@click.option("--export", type=click.Path(path_type=Path), required=True, help="File to which they are appended.")
@click.pass_obj
def drop(sets: DeadSets, idents: tuple[str, ...], group: str, every: bool, export: Path) -> None:
    """Append dead letters to a file, then remove them from the dead set."""
    _exit_with(sets.drop(_chosen(sets, idents, group, every), export), "dropped")


@dead.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.pass_obj
def restore(sets: DeadSets, file: Path) -> None:
    """Put dropped letters back into their dead sets; those that are there are skipped."""
    click.echo(f"{len(sets.restore(read_export(file)))} restored")


def _chosen(sets: DeadSets, idents: tuple[str, ...], group: str, every: bool) -> Any:
    """Return what an operation is for.

    Raises a usage error unless exactly one way of choosing is used, and InvalidMessage for the key of no letter.
    """
    if bool(idents) + bool(group) + every != 1:
        raise click.UsageError("give ids, --group KEY or --all")
    if not group:
        return list(idents) or EVERYTHING
    ids = sets.choose(LetterFilter(group=group))
    if not ids:
        raise InvalidMessage(f"no dead letter has the group {group}; `dead list --groups` lists the keys")
    return ids


def _exit_with(result: ActResult, verb: str) -> NoReturn:
    click.echo(f"{len(result.done)} {verb}")
    for ident, why in {**result.stayed, **dict.fromkeys(result.missing, "no longer there")}.items():
        _print_line(f"{ident}: {why}", err=True)
    if result.stopped:
        _print_line(f"stopped: {result.stopped}", err=True)
    raise SystemExit(0 if result.complete else 1)


def _print_line(*fields: object, err: bool = False) -> None:
    """Print a line without what a terminal would obey: a message may hold escape sequences."""
    texts = ("".join(each if each.isprintable() else " " for each in str(field)) for field in fields)
    click.echo("\t".join(texts), err=err)
