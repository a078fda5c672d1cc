"""`perennial dead`: look at what failed for good, send it back, or drop it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from app.broker.dead_letters.exports import read, to_record
from app.broker.dead_letters.letters import group_letters
from app.broker.dead_letters.sets import Chosen, DeadSets
from app.broker.dead_letters.working import Worked
from app.broker.errors import ApplicationError
from app.broker.policies.base import Budget
from app.cli import dead_view as view
from app.cli.dead_options import (
    EVERY_GROUP,
    AsJson,
    DryRun,
    Every,
    GroupMayBeBare,
    Ids,
    Limit,
    Selection,
    filtered,
)
from app.cli.printing import console, print_json, print_lines, printable, short
from app.dead_sets import dead_sets, new_export
from config.settings import get_settings

cli = typer.Typer(no_args_is_help=True, help="Messages that spent their retries, or that nothing can be done with.")

#: Messages listed on a terminal unless --limit says otherwise.
_SCREENFUL = 50


@cli.command("list", cls=GroupMayBeBare)
@filtered
def list_(selection: Selection, limit: Limit = None, as_json: AsJson = False) -> None:
    """List dead messages, oldest first; with --group, what they died of. Looking changes nothing."""
    if selection.group == EVERY_GROUP:
        _list_groups(selection, limit, as_json)
        return
    sets = selection.sets()
    # Where nothing is filtered out, the broker need not hand over more than is shown.
    most = limit or (_SCREENFUL if sys.stdout.isatty() and not as_json else None)
    first = most if selection.is_unfiltered else None
    with closing(sets.letters(selection.condition(), first=first)) as letters:
        if as_json:
            print_json(map(view.fields, islice(letters, limit)))
        elif sys.stdout.isatty():
            total = sets.depth() if selection.is_unfiltered else None
            _print_table(letters, limit or _SCREENFUL, empty=_nothing(selection, sets), total=total)
        elif not print_lines(_cells(view.fields(letter)) for letter in islice(letters, limit)):
            typer.echo(_nothing(selection, sets))


@cli.command()
def show(
    ident: Annotated[str, typer.Argument(metavar="ID", help="An id, or its beginning.")], as_json: AsJson = False
) -> None:
    """Show one dead message: what it asks for, why it died, its headers, its traceback."""
    [letter] = dead_sets().find([ident])
    if as_json:
        typer.echo(json.dumps(view.details(letter)))
        return
    for line in view.page(letter):
        typer.echo(line)


@cli.command()
@filtered
def replay(
    selection: Selection,
    idents: Ids = None,
    every: Every = False,
    limit: Limit = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="So many messages a second at most.")] = None,
    budget: Annotated[
        Budget | None,
        typer.Option(help="`keep`: not retried again. `fresh`: a new retry budget. Default: as the queue's policy."),
    ] = None,
    canary: Annotated[
        bool, typer.Option("--canary", help="One first; others only if it lived; stop at a relapse.")
    ] = False,
    wait: Annotated[float, typer.Option(min=0.1, help="Seconds that a canary has for its outcome.")] = 60.0,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Send dead messages back to their queues: confirmed there, then taken from the dead set."""
    chosen = selection.chosen(idents, every=every)
    sets = selection.sets()
    if dry_run:
        _print_plan(sets, chosen, limit, as_json, verb="replayed")
        return
    ids = sets.choose(chosen, limit=limit)
    waited = wait if canary else None
    worked = sets.replay(ids, budget=budget, rate=rate, canary=waited, progress=_progress_of(ids))
    _report(worked, "replayed", as_json)


@cli.command()
@filtered
def drop(
    selection: Selection,
    idents: Ids = None,
    every: Every = False,
    limit: Limit = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Export dead messages to a file in the data folder, then take them from the dead set."""
    chosen = selection.chosen(idents, every=every)
    sets = selection.sets()
    if dry_run:
        _print_plan(sets, chosen, limit, as_json, verb="dropped")
        return
    # Nothing is held while somebody thinks about the answer.
    ids = sets.choose(chosen, limit=limit)
    path = new_export(get_settings())
    if ids and not yes:
        _ask(ids)
    worked = sets.drop(ids, path, progress=_progress_of(ids))
    _report(worked, "dropped", as_json, **({"file": str(path)} if worked.done else {}))


@cli.command()
@filtered
def export(
    selection: Selection,
    idents: Ids = None,
    limit: Limit = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A new file instead of standard output.")
    ] = None,
) -> None:
    """Print dead messages as JSON lines, whole: `restore` reads them. They stay where they are."""
    sets = selection.sets()
    found = sets.resolve(selection.chosen(idents, every=not idents))
    lines = (json.dumps(to_record(letter)) + "\n" for letter in islice(found, limit))
    if output is None:
        for line in lines:
            typer.echo(line, nl=False)
        return
    try:
        output.touch(mode=0o600, exist_ok=False)
        with output.open("w") as file:
            file.writelines(lines)
    except OSError as error:
        raise ApplicationError(f"{output}: {error.strerror}") from error


@cli.command()
def restore(
    file: Annotated[Path, typer.Argument(help="What `drop` or `export` wrote.")], as_json: AsJson = False
) -> None:
    """Put exported messages back into their dead sets; those that are there are not put there twice."""
    restored = dead_sets().restore(read(file))
    typer.echo(json.dumps({"restored": restored}) if as_json else f"{len(restored):,} restored")


def _list_groups(selection: Selection, limit: int | None, as_json: bool) -> None:
    sets = selection.sets()
    with closing(sets.letters(selection.condition())) as letters:
        found = group_letters(letters)[:limit]
    if as_json:
        typer.echo(json.dumps([view.group_fields(group) for group in found], indent=1))
    elif not found:
        typer.echo(_nothing(selection, sets))
    elif sys.stdout.isatty():
        out = console()
        out.print(view.groups_table(found, out.width))
    else:
        rows = ({**view.group_fields(group), "queues": ",".join(group.queues)} for group in found)
        print_lines(list(row.values()) for row in rows)


def _print_table(letters: Any, limit: int, *, empty: str, total: int | None = None) -> None:
    shown = list(islice(letters, limit))
    rest = sum(1 for _ in letters) if total is None else total - len(shown)
    out = console()
    if not shown:
        out.print(empty)
        return
    out.print(view.letters_table(shown, out.width))
    if rest:
        out.print(f"{len(shown):,} of {len(shown) + rest:,} shown; --limit shows more, --group what they died of.")


def _print_plan(sets: DeadSets, chosen: Chosen, limit: int | None, as_json: bool, *, verb: str) -> None:
    letters = islice(sets.resolve(chosen), limit)
    if as_json:
        print_json(map(view.fields, letters))
    elif sys.stdout.isatty():
        _print_table(letters, _SCREENFUL, empty=f"Nothing would be {verb}.")
    else:
        print_lines(_cells(view.fields(letter)) for letter in letters)


def _progress_of(ids: Mapping[str, Sequence[str]]) -> Callable[[int], None]:
    """Return what says on a terminal how far it is."""
    total = sum(map(len, ids.values()))

    def progress(count: int) -> None:
        if sys.stderr.isatty() and total > 1:
            sys.stderr.write(f"\r{count:,} of {total:,}" + ("\n" if count == total else ""))
            sys.stderr.flush()

    return progress


def _report(worked: Worked, verb: str, as_json: bool, **told: Any) -> None:
    """Say what came of it; exit 1 where not all was done."""
    if as_json:
        result = {verb: worked.done, "stayed": worked.stayed, "missing": worked.missing, "stopped": worked.stopped}
        typer.echo(json.dumps(result | told))
    else:
        for ident, why in worked.stayed.items():
            typer.echo(f"{short(ident)} stays: {printable(why)}", err=True)
        for ident in worked.missing:
            typer.echo(f"{short(ident)} is not there any more", err=True)
        if worked.stopped:
            typer.echo(f"stopped: {printable(worked.stopped)}", err=True)
        typer.echo(f"{len(worked.done):,} {verb}" + "".join(f"; {name}: {value}" for name, value in told.items()))
    if not worked.complete:
        raise typer.Exit(1)


def _ask(ids: Mapping[str, Sequence[str]]) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody is there to ask: say --yes")
    plan = " and ".join(f"{len(its):,} of {name}" for name, its in ids.items())
    if not typer.confirm(f"Drop {plan}? They are exported first"):
        raise typer.Exit(1)


def _nothing(selection: Selection, sets: DeadSets) -> str:
    if not selection.is_unfiltered:
        return "No dead message matches."
    return "The dead set is empty." if len(list(sets)) == 1 else "The dead sets are empty."


def _cells(told: Mapping[str, Any]) -> list[Any]:
    return [told[name] for name in view.COLUMNS]
