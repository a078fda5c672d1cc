"""`perennial dead`: list what is in the dead sets, replay it, drop it, export and restore it."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from app.broker.dead_letters import Chosen, DeadSets, LetterSummary, read_export, to_record
from app.broker.dead_letters.sent import IN_DOUBT
from app.broker.errors import ApplicationError, InvalidMessage
from app.broker.headers import ReplayBudget
from app.cli import dead_changes
from app.cli import dead_output as output
from app.cli.arguments import AsJson, Why, Yes
from app.cli.context import operations
from app.cli.printing import confirm, print_result, printable
from app.errors import StoreError
from app.messages.dead_sets import dead_sets, new_export
from app.operations.letter_queries import LetterQuery, parse_time
from app.operations.letters import LetterOrder, act_on_letters, tidy_dead_sets
from config.settings import get_settings

cli = typer.Typer(no_args_is_help=True, help="Messages that spent their retries, or that nothing can be done with.")

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids, or their beginnings.")]
Every = Annotated[bool, typer.Option("--all", help="Every dead letter, or every one that the filters match.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list the dead letters concerned.")]
Limit = Annotated[int | None, typer.Option(min=1, help="At most this many, the oldest first.")]

#: The value of `list --group` without a key.
EVERY_GROUP = "*"


def _not_empty(context: typer.Context, option: typer.CallbackParam, value: str) -> str:
    """Return the value. Refuse a given empty one: `--reason "$CODE"` must never mean every reason."""
    source = context.get_parameter_source(str(option.name))
    if not value and source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter("it is empty; leave it out to mean all")
    return value


def _age(context: typer.Context, option: typer.CallbackParam, value: str) -> str:
    """Return the value, which `parse_time` reads; raises a usage error for anything else."""
    if _not_empty(context, option, value):
        try:
            parse_time(value)
        except InvalidMessage as error:
            raise typer.BadParameter(str(error)) from error
    return value


def _filter_option(help_: str, *names: str, metavar: str | None = None, callback: Any = _not_empty) -> Any:
    return typer.Option(*names, callback=callback, metavar=metavar, help=help_)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFilters:
    """The filter options of a command. Ages are texts such as `2h`."""

    set_: Annotated[str, _filter_option("Only of this dead set.", "--set", metavar="NAME")] = ""
    task: Annotated[str, _filter_option("Only of this task.", metavar="NAME")] = ""
    domain: Annotated[str, _filter_option("Only about this domain.")] = ""
    reason: Annotated[str, _filter_option("Only with this reason.", metavar="CODE")] = ""
    exception: Annotated[str, _filter_option("Only of this exception.", metavar="NAME")] = ""
    group: Annotated[
        str, _filter_option("Only of this group (`list --group` alone counts the groups).", metavar="KEY")
    ] = ""
    older: Annotated[str, _filter_option("Only dead for longer: 90s, 10m, 2h, 7d.", metavar="AGE", callback=_age)] = ""
    newer: Annotated[str, _filter_option("Only dead for less.", metavar="AGE", callback=_age)] = ""

    def sets(self) -> DeadSets:
        """Return the dead sets to read. Raises InvalidMessage for an unknown one."""
        sets = _sets()
        return sets.only(self.set_) if self.set_ else sets

    def query(self) -> LetterQuery:
        """Return the filters as those of the operations page."""
        return LetterQuery(
            set=self.set_,
            task=self.task,
            domain=self.domain,
            reason=self.reason,
            exception=self.exception,
            group="" if self.group == EVERY_GROUP else self.group,
            before=self.older,
            after=self.newer,
        )

    def condition(self) -> Callable[[LetterSummary], bool]:
        """Return the condition within the dead sets to read. Raises InvalidUrl."""
        return self.query().model_copy(update={"set": ""}).condition()

    def chosen(self, ids: Sequence[str] | None, *, every: bool) -> Chosen:
        """Return the letters to act on. Raises a usage error unless exactly one of ids, a group or --all is given."""
        if ids:
            if every or not self.match_everything:
                raise typer.BadParameter("ids and filters do not go together")
            return ids
        if not (every or self.group):
            raise typer.BadParameter("give message ids, --group KEY, or --all (optionally with filters)")
        return self.condition()

    def subject(self, ids: Sequence[str] | None) -> str:
        """Return the ids, or else the filters, for the audit."""
        return ", ".join(ids) if ids else str(self.query())

    @property
    def match_everything(self) -> bool:
        """Whether they match every letter of the dead sets."""
        return self.query().given().keys() <= {"set"}


def filtered(command: Callable[..., None]) -> Callable[..., None]:
    """Add the filter options to a command, which gets them as its argument `filters`."""
    names = [field.name for field in fields(DeadFilters)]
    own = inspect.signature(command, eval_str=True).parameters
    options = inspect.signature(DeadFilters, eval_str=True).parameters
    kept = [parameter for name, parameter in own.items() if name != "filters"]
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*kept, *options.values())]

    def run(**values: Any) -> None:
        filters = DeadFilters(**{name: values.pop(name) for name in names})
        command(filters=filters, **values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


class BareGroupOption(TyperCommand):
    """A command whose `--group` may have no key."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert EVERY_GROUP where no key follows."""
        filled: list[str] = []
        for number, arg in enumerate(args):
            filled.append(arg)
            if arg == "--group" and (number + 1 == len(args) or args[number + 1].startswith("-")):
                filled.append(EVERY_GROUP)
        return super().parse_args(ctx, filled)


@cli.command("list", cls=BareGroupOption)
@filtered
def list_(filters: DeadFilters, limit: Limit = None, as_json: AsJson = False) -> None:
    """List dead letters, oldest first; with --group, their causes. Reading changes nothing."""
    sets = filters.sets()
    empty = "No dead letter matches."
    if filters.match_everything:
        empty = "The dead set is empty." if len(sets.names) == 1 else "The dead sets are empty."
    if filters.group == EVERY_GROUP:
        output.print_groups(sets.groups(filters.condition())[:limit], as_json=as_json, empty=empty)
        return
    on_terminal = sys.stdout.isatty() and not as_json
    # Without a filter, no more is read than is shown.
    shown = limit or (output.SCREENFUL if on_terminal else None)
    letters = sets.summaries(filters.condition(), limit=shown if filters.match_everything else None)
    if on_terminal:
        total = sets.depth() if filters.match_everything else len(letters)
        output.print_table(letters[:shown], empty=empty, total=total)
    else:
        output.print_letters(letters[:limit], as_json=as_json, empty=empty)


@cli.command()
def show(
    ident: Annotated[str, typer.Argument(metavar="ID", help="An id, or its beginning.")], as_json: AsJson = False
) -> None:
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
    filters: DeadFilters,
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
    with output.progress(ids) as on_progress:
        order = LetterOrder(verb="replay", budget=budget, rate=rate, canary=wait if canary else None, again=again)
        subject = filters.subject(idents)
        result = act_on_letters(operations(), order, ids, subject=subject, why=why, on_progress=on_progress)
    output.exit_with_result(result, "replayed", as_json=as_json)


@cli.command()
@filtered
def drop(
    filters: DeadFilters,
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
        confirm(
            f"Drop {plan}? They are exported first",
            without_terminal="standard input is not a terminal: confirm with --yes",
        )
    with output.progress(ids) as on_progress:
        order, subject = LetterOrder(verb="drop"), filters.subject(idents)
        result = act_on_letters(
            operations(), order, ids, subject=subject, why=why, export=path, on_progress=on_progress
        )
    details = {"file": str(path)} if result.done else {}
    output.exit_with_result(result, "dropped", as_json=as_json, **details)


@cli.command()
@filtered
def export(
    filters: DeadFilters,
    idents: Ids = None,
    limit: Limit = None,
    path: Annotated[Path | None, typer.Option("--output", "-o", help="A new file instead of standard output.")] = None,
) -> None:
    """Print dead letters as JSON lines for `restore`. They stay in the dead set."""
    letters = filters.sets().iter_chosen(filters.chosen(idents, every=not idents))
    lines = (json.dumps(to_record(letter)) + "\n" for letter in islice(letters, limit))
    if path is None:
        for line in lines:
            typer.echo(line, nl=False)
        return
    try:
        path.touch(mode=0o600, exist_ok=False)
        with path.open("w") as file:
            file.writelines(lines)
    except OSError as error:
        raise ApplicationError(f"{path}: {error.strerror}") from error


@cli.command()
def restore(
    file: Annotated[Path, typer.Argument(help="A file that `drop` or `export` wrote.")], as_json: AsJson = False
) -> None:
    """Put exported dead letters back into their dead sets; those that are there are skipped."""
    restored = _sets().restore(read_export(file))
    print_result({"restored": restored}, f"{len(restored):,} restored", as_json=as_json)


@cli.command()
def tidy(as_json: AsJson = False) -> None:
    """Move the letters of long dead sets to shards, and drop what DEAD_MAX_LETTERS does not keep."""
    path = new_export(get_settings())
    moved, dropped = tidy_dead_sets(operations(), path)
    details = {"in shards": ", ".join(f"{count:,} of {name}" for name, count in moved.items() if count) or "none"}
    output.exit_with_result(
        dropped, "dropped", as_json=as_json, **details, **({"file": str(path)} if dropped.done else {})
    )


def _sets() -> DeadSets:
    """Return the dead sets; what an operator should know of them is printed on standard error."""
    return dead_sets(on_note=lambda text: typer.echo(printable(text), err=True))


for _command in (dead_changes.edit, dead_changes.redirect, dead_changes.note):
    cli.command()(_command)


def _chosen(
    filters: DeadFilters, idents: list[str] | None, limit: int | None, *, every: bool, dry_run: bool, as_json: bool
) -> dict[str, list[str]]:
    """Return the ids of the chosen letters by dead set; for a dry run print the letters and exit."""
    chosen = filters.chosen(idents, every=every)
    sets = filters.sets()
    if not dry_run:
        return sets.choose(chosen, limit=limit)
    letters = list(islice(sets.iter_chosen_summaries(chosen), limit))
    if sys.stdout.isatty() and not as_json:
        output.print_table(letters[: output.SCREENFUL], empty="No letter is chosen.", total=len(letters))
    else:
        output.print_letters(letters, as_json=as_json)
    raise typer.Exit
