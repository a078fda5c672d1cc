"""`perennial dead`: list what is in the dead sets, replay it as it is or changed, drop it, export and restore it."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import click
import typer

from app.broker.dead_letters import (
    Chosen,
    DeadSets,
    IdsBySet,
    LetterSummary,
    ReplayChanges,
    ReplayOptions,
    ids_by_set,
    read_export,
    to_record,
)
from app.broker.dead_letters.replay import IN_DOUBT
from app.broker.errors import ApplicationError, InvalidMessage
from app.broker.headers import ReplayBudget
from app.cli import dead_output as output
from app.cli.arguments import AsJson, Why, Yes
from app.cli.context import operator_context
from app.cli.printing import confirm, print_result, printable
from app.errors import ResourceNotFound, StoreError
from app.messages.dead_sets import dead_sets, new_export
from app.operations.letter_queries import LetterQuery
from app.operations.letters import (
    DONE,
    LetterOrder,
    act_on_letters,
    add_note,
    editable,
    edited_body,
    find_letter,
    redirect_address,
    tidy_dead_sets,
)
from config.settings import get_settings

_Letter = TypeVar("_Letter", bound=LetterSummary)

cli = typer.Typer(no_args_is_help=True, help="Messages that spent their retries, or that nothing can be done with.")


def _not_empty(context: typer.Context, option: typer.CallbackParam, value: str) -> str:
    """Return the value. Refuse a given empty one.

    `--reason "$CODE"` must never mean every reason, and `--queue "$NAME"` not the queue from which the letter came.
    """
    source = context.get_parameter_source(str(option.name))
    if not value and source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter("it is empty; leave it out instead")
    return value


Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids, or their beginnings.")]
Every = Annotated[bool, typer.Option("--all", help="Every dead letter, or every one that the filters match.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list the dead letters concerned.")]
OneId = Annotated[str, typer.Argument(metavar="ID", help="An id, or its beginning.")]
Limit = Annotated[int | None, typer.Option(min=1, help="At most this many, the oldest first.")]
Budget = Annotated[ReplayBudget | None, typer.Option(help="As of `replay`.")]
Again = Annotated[bool, typer.Option("--again", help="As of `replay`.")]
Queue = Annotated[
    str, typer.Option("--queue", callback=_not_empty, metavar="NAME", help="The queue, one of this application's.")
]
Exchange = Annotated[str, typer.Option("--exchange", metavar="NAME", help="The exchange.")]
Key = Annotated[str, typer.Option("--key", metavar="KEY", help="The routing key.")]


#: The filters of the operations page that are options of commands. The other ones read each whole message.
FILTER_OPTIONS = [name for name in LetterQuery.model_fields if name not in ("text", "act")]


def filtered(command: Callable[..., None]) -> Callable[..., None]:
    """Add the filters as options to a command, which gets them as its argument `filters`."""
    own = inspect.signature(command, eval_str=True).parameters
    parameters = [each.replace(kind=each.KEYWORD_ONLY) for name, each in own.items() if name != "filters"]
    for name in FILTER_OPTIONS:
        option = typer.Option(callback=_not_empty, help=LetterQuery.model_fields[name].description)
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, kind, default="", annotation=Annotated[str, option]))

    def run(**values: Any) -> None:
        filters = LetterQuery(**{name: values.pop(name) for name in FILTER_OPTIONS})
        try:
            filters.condition()
        except InvalidMessage as error:
            raise typer.BadParameter(str(error)) from error
        command(filters=filters, **values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


@cli.command("list")
@filtered
def list_(
    filters: LetterQuery,
    groups: Annotated[bool, typer.Option("--groups", help="Count the causes instead.")] = False,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, oldest first, or their causes. Reading changes nothing."""
    sets, condition, is_everything = _sets(filters), _condition(filters), _match_everything(filters)
    empty = "No dead letter matches."
    if is_everything:
        empty = "The dead set is empty." if len(sets.names) == 1 else "The dead sets are empty."
    if groups:
        output.print_groups(sets.groups(condition)[:limit], as_json=as_json, empty=empty)
        return
    on_terminal = sys.stdout.isatty() and not as_json
    # Without a filter, no more is read than is shown.
    shown = limit or (output.SCREENFUL if on_terminal else None)
    letters = sets.summaries(condition, limit=shown if is_everything else None)
    if on_terminal:
        output.print_table(letters[:shown], empty=empty, total=sets.depth() if is_everything else len(letters))
    else:
        output.print_letters(letters[:limit], as_json=as_json, empty=empty)


@cli.command()
def show(ident: OneId, as_json: AsJson = False) -> None:
    """Show one dead letter: its arguments, error, headers and traceback."""
    sets = _sets()
    [letter] = sets.find([ident])
    # Without the store, nothing is known of it, and the letter is shown all the same.
    with suppress(StoreError):
        if sets.is_in_doubt(letter):
            typer.echo(f"{letter.id}: {IN_DOUBT}", err=True)
    print_result(output.details(letter), "\n".join(output.page(letter)), as_json=as_json)


@cli.command()
@filtered
def replay(
    filters: LetterQuery,
    idents: Ids = None,
    every: Every = False,
    limit: Limit = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="At most this many messages per second.")] = None,
    budget: Annotated[
        ReplayBudget | None,
        typer.Option(help="`keep`: not retried again. `fresh`: a new retry budget. Default: as the queue's policy."),
    ] = None,
    canary: Annotated[
        bool, typer.Option("--canary", help="One first; the others only if it succeeds; stop at the first failure.")
    ] = False,
    wait: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the outcome of a canary.")] = 60.0,
    again: Annotated[bool, typer.Option("--again", help="Send also what an interrupted replay may have sent.")] = False,
    dry_run: DryRun = False,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Send dead letters back to their queues: confirmed there, then removed from the dead set."""
    ids = _chosen(filters, idents, limit, every=every, dry_run=dry_run, as_json=as_json)
    options = ReplayOptions(budget=budget, rate=rate, canary=wait if canary else None, again=again)
    order = LetterOrder(verb="replay", options=options)
    _carry_out(order, ids, subject=_subject(filters, idents), why=why, as_json=as_json)


@cli.command()
@filtered
def drop(
    filters: LetterQuery,
    idents: Ids = None,
    every: Every = False,
    limit: Limit = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Export dead letters to a file in the data folder, then remove them from the dead set."""
    # No letter is held unacknowledged while the operator thinks about the answer.
    ids = _chosen(filters, idents, limit, every=every, dry_run=dry_run, as_json=as_json)
    path = new_export(get_settings())
    if ids and not yes:
        plan = " and ".join(f"{len(set_ids):,} of {name}" for name, set_ids in ids.items())
        confirm(f"Drop {plan}? They are exported first")
    order, subject = LetterOrder(verb="drop"), _subject(filters, idents)
    _carry_out(order, ids, subject=subject, why=why, as_json=as_json, export=path)


@cli.command()
@filtered
def export(
    filters: LetterQuery,
    idents: Ids = None,
    limit: Limit = None,
    path: Annotated[Path | None, typer.Option("--output", "-o", help="A new file instead of standard output.")] = None,
) -> None:
    """Print dead letters as JSON lines for `restore`. They stay in the dead set."""
    letters = _of_group(filters, _sets(filters).iter_chosen(_chosen_by(filters, idents, every=not idents)))
    lines = (json.dumps(to_record(letter)) + "\n" for letter in islice(letters, limit))
    if path is None:
        for line in lines:
            typer.echo(line, nl=False)
        return
    try:
        path.touch(mode=0o600, exist_ok=False)
        try:
            with path.open("w") as file:
                file.writelines(lines)
        except BaseException:
            # A part of the letters must not pass for all of them.
            path.unlink()
            raise
    except OSError as error:
        raise ApplicationError(f"{path}: {error.strerror}") from error


@cli.command()
def restore(
    file: Annotated[Path, typer.Argument(help="A file that `drop` or `export` wrote.")], as_json: AsJson = False
) -> None:
    """Put exported dead letters back into their dead sets. Those that are there are skipped."""
    restored = _sets().restore(read_export(file))
    print_result({"restored": restored}, f"{len(restored):,} restored", as_json=as_json)


@cli.command()
def tidy(as_json: AsJson = False) -> None:
    """Move the letters of long dead sets to shards, and drop what DEAD_MAX_LETTERS does not keep."""
    path = new_export(get_settings())
    moved, dropped = tidy_dead_sets(operator_context(), path)
    details = {"in shards": ", ".join(f"{count:,} of {name}" for name, count in moved.items() if count) or "none"}
    output.exit_with_result(
        dropped, "dropped", as_json=as_json, **details, **({"file": str(path)} if dropped.done else {})
    )


@cli.command()
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
    ops = operator_context()
    letter = find_letter(ops.dead_sets, ident)
    if not arguments:
        edited = click.edit(editable(letter), extension=".json") if sys.stdin.isatty() else sys.stdin.read()
        if edited is None:
            typer.echo("Nothing was changed.", err=True)
            raise typer.Exit(1)
        arguments = edited
    changes = ReplayChanges(body=edited_body(letter, arguments), content_type=content_type or None)
    if queue or exchange or key:
        address = redirect_address(ops.settings, queue=queue, exchange=exchange, routing_key=key)
        changes = replace(changes, address=address)
    order = LetterOrder(verb="edit", options=ReplayOptions(budget=budget, again=again, changes=changes))
    _carry_out(order, {letter.set: [letter.id]}, subject=letter.id, why=why, as_json=as_json)


@cli.command()
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
    ops = operator_context()
    address = redirect_address(ops.settings, queue=queue, exchange=exchange, routing_key=key)
    options = ReplayOptions(budget=budget, again=again, changes=ReplayChanges(address=address))
    order = LetterOrder(verb="redirect", options=options)
    ids = ops.dead_sets.choose(idents)
    subject = ", ".join(ident for listed in ids.values() for ident in listed)
    _carry_out(order, ids, subject=subject, why=why, as_json=as_json)


@cli.command()
def note(
    ident: OneId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The note.")],
    as_json: AsJson = False,
) -> None:
    """Keep a note about a dead letter. The operations page shows it."""
    ops = operator_context()
    letter = find_letter(ops.dead_sets, ident)
    notes = add_note(ops, letter.id, text)
    result = {"id": letter.id, "notes": list(map(asdict, notes))}
    print_result(result, f"{letter.id}: {len(notes)} notes", as_json=as_json)


def _sets(filters: LetterQuery | None = None) -> DeadSets:
    """Return the dead sets, or the one that is filtered for; raises InvalidMessage for an unknown one.

    What an operator should know of them is printed on standard error.
    """
    sets = dead_sets(on_warning=lambda text: typer.echo(printable(text), err=True))
    return sets.only(filters.set) if filters and filters.set else sets


def _match_everything(filters: LetterQuery) -> bool:
    """Return whether the filters match every letter of the dead sets that are read."""
    return filters.given().keys() <= {"set"}


def _condition(filters: LetterQuery) -> Callable[[LetterSummary], bool]:
    """Return the condition within the dead sets that are read."""
    return filters.model_copy(update={"set": ""}).condition()


def _chosen_by(filters: LetterQuery, idents: Sequence[str] | None, *, every: bool) -> Chosen:
    """Return the letters to act on. Raises a usage error unless exactly one of ids, a group or --all is given."""
    if idents:
        if every or not _match_everything(filters):
            raise typer.BadParameter("ids and filters do not go together")
        return idents
    if not (every or filters.group):
        raise typer.BadParameter("give message ids, --group KEY, or --all (optionally with filters)")
    return _condition(filters)


def _subject(filters: LetterQuery, idents: Sequence[str] | None) -> str:
    """Return the ids, or else the filters, for the audit."""
    return ", ".join(idents) if idents else str(filters)


def _chosen(
    filters: LetterQuery, idents: list[str] | None, limit: int | None, *, every: bool, dry_run: bool, as_json: bool
) -> dict[str, list[str]]:
    """Return the ids of the chosen letters by dead set; for a dry run print the letters and exit."""
    chosen = _chosen_by(filters, idents, every=every)
    found = islice(_of_group(filters, _sets(filters).iter_chosen_summaries(chosen)), limit)
    if not dry_run:
        return ids_by_set(found)
    letters = list(found)
    if sys.stdout.isatty() and not as_json:
        output.print_table(letters[: output.SCREENFUL], empty="No letter is chosen.", total=len(letters))
    else:
        output.print_letters(letters, as_json=as_json)
    raise typer.Exit


def _of_group(filters: LetterQuery, found: Iterable[_Letter]) -> Iterator[_Letter]:
    """Yield the letters that were found.

    Raises ResourceNotFound where a group has none of them: a mistyped key must not look as if all were done.
    """
    is_empty = True
    for letter in found:
        is_empty = False
        yield letter
    if is_empty and filters.group:
        others = ", or not with the other filters" if filters.given().keys() > {"group"} else ""
        raise ResourceNotFound(
            f"no dead letter has the group {filters.group}{others}; `perennial dead list --groups` lists the keys"
        )


def _carry_out(
    order: LetterOrder, ids: IdsBySet, *, subject: str, why: str, as_json: bool, export: Path | None = None
) -> NoReturn:
    """Carry an order out at once, print its result and exit; dropped letters are appended to `export`."""
    with output.progress(ids) as on_progress:
        result = act_on_letters(
            operator_context(), order, ids, subject=subject, why=why, export=export, on_progress=on_progress
        )
    details = {"file": str(export)} if export and result.done else {}
    verb = "replayed" if order.verb == "edit" else DONE[order.verb]
    output.exit_with_result(result, verb, as_json=as_json, **details)
