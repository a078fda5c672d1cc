"""Which dead messages a command is for: the same options for all of them."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from app.broker.dead_letters.letters import DeadLetter
from app.broker.dead_letters.sets import Chosen, DeadSets
from app.dead_sets import dead_sets, where

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids, or their beginnings.")]
Every = Annotated[bool, typer.Option("--all", help="All, or all that the filters leave.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list what it would be done with.")]
Limit = Annotated[int | None, typer.Option(min=1, help="So many messages at most, the oldest first.")]

#: What `list --group` without a key stands for.
EVERY_GROUP = "*"

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def _not_empty(context: typer.Context, option: typer.CallbackParam, value: str) -> str:
    """Return it; a usage error where it is given and empty: `--reason "$CODE"` must never mean every reason."""
    source = context.get_parameter_source(str(option.name))
    if not value and source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter("it is empty; leave it out to mean all")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What the filters say. Ages are texts such as `2h`."""

    set_: Annotated[str, typer.Option("--set", callback=_not_empty, metavar="NAME", help="Only of this dead set.")] = ""
    task: Annotated[str, typer.Option(callback=_not_empty, metavar="NAME", help="Only of this task.")] = ""
    domain: Annotated[str, typer.Option(callback=_not_empty, help="Only about this domain.")] = ""
    reason: Annotated[str, typer.Option(callback=_not_empty, metavar="CODE", help="Only with this reason.")] = ""
    exception: Annotated[str, typer.Option(callback=_not_empty, metavar="NAME", help="Only of this exception.")] = ""
    group: Annotated[
        str,
        typer.Option(
            callback=_not_empty, metavar="KEY", help="Only of this group (`list --group` alone counts the groups)."
        ),
    ] = ""
    older: Annotated[
        str, typer.Option(callback=_not_empty, metavar="AGE", help="Only dead for longer: 90s, 10m, 2h, 7d.")
    ] = ""
    newer: Annotated[str, typer.Option(callback=_not_empty, metavar="AGE", help="Only dead for less.")] = ""

    def sets(self) -> DeadSets:
        """Return the dead sets to look into; raises InvalidMessage for one that there is not."""
        sets = dead_sets()
        return sets.only(self.set_) if self.set_ else sets

    def condition(self) -> Callable[[DeadLetter], bool]:
        """Return what the filters leave; raises InvalidUrl, and a usage error for an age that is none."""
        now = time.time()
        return where(
            task=self.task,
            domain=self.domain,
            reason=self.reason,
            exception=self.exception,
            group="" if self.group == EVERY_GROUP else self.group,
            before=now - seconds(self.older) if self.older else None,
            after=now - seconds(self.newer) if self.newer else None,
        )

    def chosen(self, idents: Sequence[str] | None, *, every: bool) -> Chosen:
        """Return what is to be acted on; a usage error unless ids, a group or --all say it, and only one of them."""
        if idents:
            if every or self != Selection(set_=self.set_):
                raise typer.BadParameter("ids and filters do not go together")
            return idents
        if not (every or self.group):
            raise typer.BadParameter("give message ids, --group KEY, or --all (filters then say of which)")
        return self.condition()

    @property
    def is_unfiltered(self) -> bool:
        """Whether nothing of the dead sets is filtered out."""
        return self in (Selection(set_=self.set_), Selection(set_=self.set_, group=EVERY_GROUP))


def filtered(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the filters as options; it gets them as its argument `selection`."""
    own = inspect.signature(command, eval_str=True)
    names = [field.name for field in fields(Selection)]
    added = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(Selection, eval_str=True).parameters.values()
    ]

    def run(**given: Any) -> None:
        selection = Selection(**{name: given.pop(name) for name in names})
        command(selection=selection, **given)

    kept = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in own.parameters.items()
        if name != "selection"
    ]
    run.__signature__ = inspect.Signature([*kept, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in (*kept, *added)}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


class GroupMayBeBare(TyperCommand):
    """A command whose `--group` may stand without a key."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the sign for every group where no key follows."""
        filled: list[str] = []
        for number, arg in enumerate(args):
            filled.append(arg)
            if arg == "--group" and (number + 1 == len(args) or args[number + 1].startswith("-")):
                filled.append(EVERY_GROUP)
        return super().parse_args(ctx, filled)


def seconds(age: str) -> float:
    """Return the seconds of `90s`, `10m`, `2h`, `7d` or `1w`; a usage error for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", age.strip())
    if match is None:
        raise typer.BadParameter(f"age {age!r}: expected a number and s, m, h, d or w, as in 2h")
    return float(match[1]) * _UNITS[match[2]]
