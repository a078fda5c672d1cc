"""`make bench`: measure rows in rounds, print tables, and write benchmarks/RESULTS.md."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from app.broker.errors import ApplicationError
from benchmarks import (
    crawl,
    enqueue,
    events,
    extract,
    fairness,
    growth,
    latency,
    machine,
    pack,
    polite,
    report,
    search,
    search_tables,
    sites,
    small_sites,
)
from benchmarks.crawl import CrawlRun
from benchmarks.errors import BenchmarkError
from benchmarks.figures import MeasuredRow
from benchmarks.names import indexes
from benchmarks.names import run as names
from benchmarks.plots import write_plots
from benchmarks.profile import Share, summary
from benchmarks.relevance import corpus, questions
from benchmarks.relevance import run as relevance
from benchmarks.stored_results import Section, load_sections, store_section
from benchmarks.system import BenchSystem, start_system
from benchmarks.usage import quiet_within
from config.settings import ROOT, Settings
from demo.supervisor import exit_on_signal

#: The results of a row, and the versions of what only this row uses.
Measured = tuple[MeasuredRow, dict[str, str]]

RESULTS, STORED = Path(__file__).parent / "RESULTS.md", Path(__file__).parent / "results"
#: Rows of what is generated, which have small sizes, too.
GENERATED: Mapping[str, Callable[..., MeasuredRow]] = {
    "polite": polite.run,
    "fairness": fairness.run,
    "latency": latency.run,
    "small-sites": small_sites.run,
    "events": events.run,
}
#: Rows that take long, which run only where they are named.
LONG = ("growth-long", "pack-long")
ROWS = ("crawl", *GENERATED, "growth", "pack", "enqueue", "search", "relevance", "names", "extract")
SMALL = (*GENERATED, "growth")
#: Seconds that a run waits for other programs to become idle. Then it runs anyway, and the page says so.
QUIET_TIMEOUT = 10.0
#: Attempts of a disturbed run.
ATTEMPTS = 2

console = Console()


def bench(
    rows: Annotated[str, typer.Option(help=f"Rows, separated by commas: {', '.join(ROWS + LONG)}.")] = ",".join(ROWS),
    site: Annotated[str, typer.Option("--sites", help="Sites to crawl, separated by commas.")] = ",".join(sites.SITES),
    runs: Annotated[int, typer.Option(min=1, help="Rounds of crawl; enqueue has ten times as many.")] = 3,
    concurrency: Annotated[str, typer.Option(help="Sizes of the worker's pool, separated by commas.")] = "2,4",
    profile: Annotated[bool, typer.Option(help="Repeat the crawl under py-spy.")] = True,
    unseen: Annotated[
        bool, typer.Option("--unseen", help="Row relevance: measure on the sites held out, too.")
    ] = False,
    small: Annotated[
        bool, typer.Option("--small", help=f"Try {', '.join(SMALL)} with small sizes. Nothing of them is stored.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(help="File for the results of this run alone. By default, complete rows go to RESULTS.md."),
    ] = None,
) -> None:
    """Measure side by side with comparable programs and write the results."""
    wanted = _chosen(rows, ROWS + LONG, kind="row")
    chosen = _chosen(site, list(sites.SITES), kind="site")
    pools = [int(size) for size in concurrency.split(",")]
    folder = ROOT / ".perennial" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    measure: dict[str, Callable[[], Measured]] = {
        "crawl": lambda: _crawls(chosen, folder, runs=runs, pools=pools, profile=profile),
        "growth": lambda: _grown(folder, growth.SMALL if small else growth.SIZES),
        "growth-long": lambda: _grown(folder, growth.LONG),
        "pack": lambda: _packed(folder, pack.SHORT),
        "pack-long": lambda: _packed(folder, pack.LONG),
        "enqueue": lambda: _in_system(lambda system: enqueue.shown(enqueue.run(system, rounds=10 * runs)), folder),
        "search": lambda: _searched(folder),
        "relevance": lambda: _judged(folder, unseen=unseen),
        "names": lambda: _named(folder),
        "extract": lambda: (extract.run(folder), extract.versions()),
        **{row: partial(_in_system, partial(run, small=small), folder) for row, run in GENERATED.items()},
    }
    complete = {
        "crawl": set(chosen) == set(sites.SITES) and profile,
        "relevance": unseen,
        **dict.fromkeys(SMALL, not small),
    }
    sections = []
    for row in (row for row in ROWS + LONG if row in wanted):
        sections.append(_section(row, measure[row]))
        # Stored at once: a later row that fails does not lose it.
        if not output and complete.get(row, True):
            _store(sections[-1])
    if output:
        _write_page(output, sections)


def _section(row: str, measure: Callable[[], Measured]) -> Section:
    """Measure a row and print its tables."""
    console.print(f"{row} ...")
    quiet_within(QUIET_TIMEOUT)
    measured, versions = measure()
    date = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    versions = machine.versions() | versions
    section = report.section(row, measured, date=date, machine=machine.machine(), versions=versions)
    for warning in section.warnings:
        console.print(warning)
    for table in (report.aims_table(section), *section.tables):
        console.print(table.rich())
    return section


def _store(section: Section) -> None:
    """Store the results of a complete row, and write the page of all stored rows."""
    store_section(STORED, section)
    _write_page(RESULTS, load_sections(STORED, ROWS + LONG))


def _write_page(path: Path, sections: Sequence[Section]) -> None:
    """Write the page of the sections, and their plots beside it."""
    path.write_text(report.page(sections))
    write_plots(path.parent / report.PLOTS, [plot for section in sections for plot in section.plots])
    console.print(f"Written: {path}")


def _in_system(run: Callable[[BenchSystem], MeasuredRow], folder: Path) -> Measured:
    with start_system(folder) as system:
        return run(system), machine.services_versions(system.settings)


def _grown(folder: Path, sizes: growth.GrowthSizes) -> Measured:
    measured = growth.run(folder, sizes)
    with start_system(folder) as system:
        return measured, machine.services_versions(system.settings)


def _packed(folder: Path, form: pack.PackForm) -> Measured:
    return pack.run(folder, form), _packages(pack.SITES, folder, pack.SITES)


def _searched(folder: Path) -> Measured:
    measured, versions = _in_system(lambda system: search_tables.shown(search.run(system)), folder)
    return measured, versions | _packages(sites.SITES, folder)


def _judged(folder: Path, *, unseen: bool) -> Measured:
    parts = relevance.run(folder, unseen=unseen)
    names = sorted({query.site for part in parts for query in part.queries} | questions.sites(unseen=unseen))
    shown = relevance.shown(parts)
    tables = (*shown.tables, questions.run(folder, unseen=unseen))
    return replace(shown, tables=tables), _packages(names, folder, corpus.SITES)


def _named(folder: Path) -> Measured:
    outcomes = names.run(folder, {names.TUNING: False, names.HELD_OUT: True})
    return names.shown(outcomes), _packages(indexes.SITES, folder, corpus.SITES)


def _packages(
    chosen: Collection[str], folder: Path, catalogue: Mapping[str, sites.DebianSite] = sites.SITES
) -> dict[str, str]:
    """Return package and version of each downloaded site."""
    names = (sites.version(catalogue[site], folder / "sites").split("_") for site in chosen)
    return {name: number for name, number, _ in names}


def _chosen(text: str, choices: Sequence[str], *, kind: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in choices]
    if unknown or not names:
        raise BenchmarkError(f"{kind} {', '.join(unknown) or text!r}: expected some of {', '.join(choices)}")
    return names


def _crawls(chosen: Sequence[str], folder: Path, *, runs: int, pools: Sequence[int], profile: bool) -> Measured:
    """Measure the crawls of all sites."""
    with ExitStack() as stack:
        served = stack.enter_context(sites.serve(chosen, folder))
        system = stack.enter_context(start_system(folder))
        runs_by_site = {site: _rounds(site, served, system, runs=runs, pools=pools) for site in chosen}
        profiles = {site: _profile(site, served, system, runs_by_site[site]) for site in chosen} if profile else {}
        versions = machine.services_versions(system.settings) | machine.nginx_version()
    return crawl.shown(runs_by_site, profiles), versions | _packages(chosen, folder)


def _rounds(
    site: str, served: sites.ServedSites, system: BenchSystem, *, runs: int, pools: Sequence[int]
) -> list[CrawlRun]:
    contestants: list[Callable[[], CrawlRun]] = [
        *(lambda size=size: crawl.crawl(site, served, system, concurrency=size) for size in pools),
        lambda: crawl.scrapy(site, served, system.folder),
    ]
    done = []
    for number in range(1, runs + 1):
        round_runs = [_measured(contestant, number) for contestant in contestants]
        _require_same_pages(round_runs)
        done += round_runs
    return done


def _measured(contestant: Callable[[], CrawlRun], number: int) -> CrawlRun:
    """Return the first undisturbed run, or else the least disturbed one."""
    attempts: list[CrawlRun] = []
    while len(attempts) < ATTEMPTS and not (attempts and attempts[-1].others <= report.DISTURBED):
        quiet_within(QUIET_TIMEOUT)
        attempts.append(contestant())
        _print_run(attempts[-1], number)
    return min(attempts, key=lambda run: run.others)


def _print_run(run: CrawlRun, number: int) -> None:
    console.print(
        f"{run.site}, round {number}: {run.contestant}: {run.pages_per_second:.0f} pages/s, "
        f"{run.cpu_ms_per_page:.1f} CPU ms/page, others {run.others:.0%}"
    )


def _require_same_pages(runs: Sequence[CrawlRun]) -> None:
    first, *rest = runs
    for run in rest:
        if run.pages != first.pages:
            only = {
                each.contestant: sorted(each.pages - other.pages)[:5] for each, other in ((first, run), (run, first))
            }
            raise BenchmarkError(
                f"{run.site}: contestants found different pages: {len(first.pages)} and {len(run.pages)}; only {only}"
            )


def _profile(site: str, served: sites.ServedSites, system: BenchSystem, runs: Sequence[CrawlRun]) -> list[Share]:
    size = int(crawl.best(runs).rpartition(" ")[2])
    stacks = system.folder / f"{site}.stacks"
    stacks.unlink(missing_ok=True)
    crawl.crawl(site, served, system, concurrency=size, profile=stacks)
    return summary(stacks)


def main() -> None:
    """Run the command. An ApplicationError prints one line on standard error and exits 1."""
    # An exit by SystemExit also stops the private services.
    signal.signal(signal.SIGTERM, exit_on_signal)
    # Figures are comparable only with default settings, so the user's settings are removed.
    for name, field in Settings.model_fields.items():
        os.environ.pop(str(field.validation_alias or name).upper(), None)
    try:
        typer.run(bench)
    except ApplicationError as error:
        typer.echo(f"benchmarks: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
