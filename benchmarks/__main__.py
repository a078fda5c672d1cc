"""`make bench`: chosen rows, in rounds, as tables and as their part of benchmarks/RESULTS.md."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console

from app.broker.errors import ApplicationError
from benchmarks import crawl, enqueue, machine, pack, parked, peer, report, search, sites
from benchmarks.errors import BenchmarkError
from benchmarks.kept import Section, keep, kept
from benchmarks.profile import Share, summary
from benchmarks.report import Results
from benchmarks.runs import Run
from benchmarks.usage import quiet_within
from config.settings import ROOT, Settings

RESULTS, KEPT = Path(__file__).parent / "RESULTS.md", Path(__file__).parent / "results"
ROWS = ("crawl", "pack", "enqueue", "parked", "search")
#: Seconds that a run waits for other programs to leave the machine alone; then it runs all the same, and says so.
PATIENCE = 10.0
#: Times that a disturbed run is made, in all.
ATTEMPTS = 2

console = Console()


def bench(
    rows: Annotated[str, typer.Option(help=f"What to measure, with commas: {', '.join(ROWS)}.")] = ",".join(ROWS),
    site: Annotated[str, typer.Option("--sites", help="Sites to crawl, with commas.")] = ",".join(sites.SITES),
    runs: Annotated[int, typer.Option(min=1, help="Rounds of crawl; enqueue has ten times as many.")] = 3,
    concurrency: Annotated[str, typer.Option(help="Sizes of the worker's pool to try, with commas.")] = "2,4",
    profile: Annotated[bool, typer.Option(help="Crawl once more under py-spy.")] = True,
    output: Annotated[
        Path | None,
        typer.Option(help="File for the results of this run alone; by default, whole rows go to RESULTS.md."),
    ] = None,
) -> None:
    """Measure side by side with comparable programs and write the results."""
    wanted = _chosen(rows, ROWS, "row")
    chosen = _chosen(site, list(sites.SITES), "site")
    pools = [int(size) for size in concurrency.split(",")]
    folder = ROOT / ".perennial" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    measure: dict[str, Callable[[], dict[str, Any]]] = {
        "crawl": lambda: _crawls(chosen, folder, runs=runs, pools=pools, profile=profile),
        "pack": lambda: {"pack": pack.run()},
        "enqueue": lambda: _enqueued(folder, runs=runs),
        "parked": lambda: _parked(folder),
        "search": lambda: _searched(folder),
    }
    sections = [_section(row, measure[row]) for row in ROWS if row in wanted]
    if output:
        output.write_text(report.page(sections))
        console.print(f"Written: {output}")
        return
    whole = set(chosen) == set(sites.SITES) and profile
    _keep([each for each in sections if whole or each.row != "crawl"])


def _section(row: str, measure: Callable[[], dict[str, Any]]) -> Section:
    """Measure a row and show what was found."""
    console.print(f"{row} ...")
    quiet_within(PATIENCE)
    figures = measure()
    figures["versions"] = machine.versions() | figures.pop("versions", {})
    date = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    results = Results(date=date, machine=machine.machine(), **figures)
    for warning in report.warnings(results):
        console.print(warning)
    for table in report.tables(results):
        console.print(table.rich())
    return report.section(row, results)


def _keep(sections: Sequence[Section]) -> None:
    """Keep what was measured of whole rows, and write the page of all that is kept."""
    for section in sections:
        keep(KEPT, section)
    if sections:
        RESULTS.write_text(report.page(kept(KEPT, ROWS)))
        console.print(f"Written: {RESULTS}")


def _enqueued(folder: Path, *, runs: int) -> dict[str, Any]:
    with crawl.system(folder) as here:
        found = enqueue.run(here, rounds=10 * runs)
        return {"enqueue": found, "versions": machine.broker_version(here.settings)}


def _parked(folder: Path) -> dict[str, Any]:
    found, versions = [], {}
    for queue_type in parked.QUEUE_TYPES:
        with crawl.system(folder) as here:
            found.append(parked.run(here, queue_type))
            versions = machine.broker_version(here.settings)
    return {"parked": found, "versions": versions}


def _searched(folder: Path) -> dict[str, Any]:
    with crawl.system(folder) as here:
        found = search.run(here)
        versions = machine.broker_version(here.settings)
    return {"search": found, "versions": versions | _packages(sites.SITES, folder)}


def _packages(chosen: Collection[str], folder: Path) -> dict[str, str]:
    """Return package and version of each site that was downloaded."""
    told = (sites.version(sites.SITES[site], folder / "sites").split("_") for site in chosen)
    return {name: number for name, number, _ in told}


def _chosen(text: str, known: Sequence[str], what: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise BenchmarkError(f"{what} {', '.join(unknown) or text!r}: expected some of {', '.join(known)}")
    return names


def _crawls(chosen: Sequence[str], folder: Path, *, runs: int, pools: Sequence[int], profile: bool) -> dict[str, Any]:
    """Measure the crawls of all sites; return the fields of `Results` that come of them."""
    with ExitStack() as stack:
        served = stack.enter_context(sites.serve(chosen, folder))
        system = stack.enter_context(crawl.system(folder))
        found = {site: _rounds(site, served, system, runs=runs, pools=pools) for site in chosen}
        profiles = {site: _profile(site, served, system, found[site]) for site in chosen} if profile else {}
        versions = machine.server_versions(system.settings)
    return {"crawls": found, "profiles": profiles, "versions": versions | _packages(chosen, folder)}


def _rounds(site: str, served: sites.Served, system: crawl.System, *, runs: int, pools: Sequence[int]) -> list[Run]:
    contestants: list[Callable[[], Run]] = [
        *(lambda size=size: crawl.crawl(site, served, system, concurrency=size) for size in pools),
        lambda: peer.scrapy(site, served, system.folder),
    ]
    done = []
    for number in range(1, runs + 1):
        found = [_measured(contestant, number) for contestant in contestants]
        _same_pages(found)
        done += found
    return done


def _measured(contestant: Callable[[], Run], number: int) -> Run:
    """Return the first run that others left alone, or else the one that they disturbed least."""
    tried: list[Run] = []
    while len(tried) < ATTEMPTS and not (tried and tried[-1].others <= report.DISTURBED):
        quiet_within(PATIENCE)
        tried.append(contestant())
        _tell(tried[-1], number)
    return min(tried, key=lambda run: run.others)


def _tell(run: Run, number: int) -> None:
    console.print(
        f"{run.site}, round {number}: {run.contestant}: {run.pages_per_second:.0f} pages/s, "
        f"{run.cpu_ms_per_page:.1f} CPU ms/page, others {run.others:.0%}"
    )


def _same_pages(runs: Sequence[Run]) -> None:
    first, *rest = runs
    for run in rest:
        if run.pages != first.pages:
            only = {
                each.contestant: sorted(each.pages - other.pages)[:5] for each, other in ((first, run), (run, first))
            }
            raise BenchmarkError(
                f"{run.site}: not the same pages: {len(first.pages)} and {len(run.pages)}; only {only}"
            )


def _profile(site: str, served: sites.Served, system: crawl.System, runs: Sequence[Run]) -> list[Share]:
    size = int(report.best(runs).rpartition(" ")[2])
    stacks = system.folder / f"{site}.stacks"
    stacks.unlink(missing_ok=True)
    crawl.crawl(site, served, system, concurrency=size, profile=stacks)
    return summary(stacks)


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    sys.exit(128 + number)


def main() -> None:
    """Run the command; an error of ours is one line on standard error and exit 1."""
    # So that no service stays behind.
    signal.signal(signal.SIGTERM, _leave)
    # The figures are to be the same for everybody: what the user has set is taken away.
    for name, field in Settings.model_fields.items():
        os.environ.pop(str(field.validation_alias or name).upper(), None)
    try:
        typer.run(bench)
    except ApplicationError as error:
        typer.echo(f"benchmarks: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
