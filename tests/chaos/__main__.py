"""`make chaos`: run rounds of crawls under faults, print the report, and fail for any violation."""

from __future__ import annotations

import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from config.settings import ROOT
from tests.chaos import report
from tests.chaos.faults import FAULTS
from tests.chaos.rounds import Extent, RoundResult, run_round
from tests.chaos.schedule import MIXED, RoundPlan, plan_rounds
from tests.chaos.system import System, running_system

ROWS = (*FAULTS, MIXED)

Say = Callable[[str], object]


def run(
    plans: Sequence[RoundPlan], folder: Path, *, extent: Extent, minutes: float, say: Say = print
) -> Iterator[RoundResult]:
    """Run rounds below `folder` until they or the minutes are over; yield their outcomes.

    A round uses the system of the round before, unless that round had a violation or another kind of store.
    """
    deadline = time.monotonic() + 60 * minutes
    with ExitStack() as stack:
        system: System | None = None
        store = ""
        for number, plan in enumerate(plans):
            if time.monotonic() > deadline:
                say(f"{minutes:g} minutes are over: {len(plans) - number} rounds were not run")
                return
            if system is None or store != plan.store:
                stack.close()
                system, store = stack.enter_context(running_system(folder / f"system-{number}", plan.store)), plan.store
            result = run_round(system, plan, extent, folder / "packs")
            say(report.describe(result))
            if result.violations:
                (folder / f"round-{number}.log").write_text(result.logs)
                system = None
            yield result


cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@cli.command()
def chaos(
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same faults. Random without.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each fault.")] = 1,
    faults: Annotated[str, typer.Option(help=f"Separated by commas: {', '.join(ROWS)}.")] = ",".join(ROWS),
    minutes: Annotated[float, typer.Option(help="No round begins after this time.")] = 20.0,
    sites: Annotated[int, typer.Option(min=1, help="Sites that are crawled at the same time.")] = Extent().sites,
    pages: Annotated[int, typer.Option(min=20, help="Pages of a site with a delay.")] = Extent().pages,
) -> None:
    """Crawl generated sites while faults come over the system, and check that nothing is lost."""
    # A table that is written to a file needs more than a default width of 80.
    console = Console(width=max(Console().width, 120), soft_wrap=True, highlight=False)
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    console.print(f"seed {seed}")
    chosen = _chosen(faults.split(","))
    unavailable = {name: reason for name in chosen if name in FAULTS and (reason := FAULTS[name].missing())}
    available = {name: fault for name, fault in FAULTS.items() if name not in unavailable}
    plans = plan_rounds(seed, [name for name in chosen if name not in unavailable], available, rounds=rounds)
    folder = ROOT / ".perennial" / "chaos"
    shutil.rmtree(folder, ignore_errors=True)
    results: list[RoundResult] = []
    try:
        results.extend(run(plans, folder, extent=Extent(sites, pages), minutes=minutes, say=console.print))
    finally:
        console.print(report.table(results))
    for name, reason in unavailable.items():
        console.print(f"{name} was not run: {reason}")
    failed = sum(bool(result.violations) for result in results)
    console.print(f"{len(results)} rounds, {failed} failed; repeat them with --seed {seed}")
    sys.exit(int(failed > 0 or not results))


def _chosen(names: Sequence[str]) -> list[str]:
    for name in names:
        if name not in ROWS:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(ROWS)}")
    return [name for name in ROWS if name in names]


if __name__ == "__main__":
    cli()
