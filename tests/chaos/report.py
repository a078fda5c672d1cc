"""The report of a run: a table by fault, the violations, and the verdict."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Literal, get_args

from rich.table import Table

from tests.chaos.ledger import Column
from tests.chaos.rounds import RoundResult

Verdict = Literal["ok", "FAILED"]

#: Violations of one rule that the report names.
_SHOWN = 5

COLUMNS: tuple[Column, ...] = get_args(Column)
HEADER = ("fault", "rounds", "lost", "wrong", "early", "stuck", "duplicates", "recovery p50", "max", "verdict")


def verdict(results: Sequence[RoundResult]) -> Verdict:
    """Return the verdict on the rounds of one row."""
    return "FAILED" if any(each.violations for each in results) else "ok"


def row(title: str, results: Sequence[RoundResult]) -> tuple[str, ...]:
    """Return the cells of a row: violations by column, but duplicates as they were counted, allowed or not."""
    counts = [sum(each.column == column for result in results for each in result.violations) for column in COLUMNS[:-1]]
    repeated = sum(result.duplicates.total() for result in results)
    times = [each.recovery for each in results if each.recovery is not None]
    recovery = (f"{statistics.median(times):.1f} s", f"{max(times):.1f} s") if times else ("-", "-")
    return (title, str(len(results)), *map(str, counts), str(repeated), *recovery, verdict(results))


def rows(results: Sequence[RoundResult]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each row of the report."""
    for name in dict.fromkeys(result.plan.row for result in results):
        yield row(name, [each for each in results if each.plan.row == name])


def table(results: Sequence[RoundResult]) -> Table:
    """Return the rows as a table."""
    made = Table(*HEADER, box=None)
    for cells in rows(results):
        made.add_row(*cells)
    return made


def describe(result: RoundResult) -> str:
    """Return what happened in a round: a line, and one more for each violation."""
    plan = result.plan
    faults = " and ".join(f"{each.name} for {each.seconds:g} s" if each.seconds else each.name for each in plan.faults)
    recovery = f"next page after {result.recovery:.1f} s" if result.recovery is not None else "no page was left"
    moment = plan.moment if isinstance(plan.moment, str) else f"{plan.moment:.0%}"
    head = f"{faults} at {moment}: {verdict([result])}; {recovery}, {result.seconds:.0f} s in all"
    by_rule: dict[str, list[str]] = {}
    for each in result.violations:
        by_rule.setdefault(each.rule, []).append(f"  {each}")
    for rule, lines in by_rule.items():
        lines[_SHOWN:] = [f"  {rule}: {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "\n".join([head, *chain.from_iterable(by_rule.values())])
