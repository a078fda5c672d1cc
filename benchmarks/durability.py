"""Row `durability`: the price of syncing each page to the disk before its message is acknowledged."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.figures import FigureTable, MeasuredRow, bullets, ratios, spread
from benchmarks.generated_sites import SiteForm, serve_generated
from benchmarks.system import BenchSystem, cpu_ms, machine_share_of_others, running_crawler

#: Pages of a run, pages that are crawled before it, and rounds.
PAGES, SMALL_PAGES, WARM_UP = 1_500, 150, 100
ROUNDS, SMALL_ROUNDS = 3, 1
TIMEOUT = 300.0

METHOD = bullets(
    f"""Durability: rounds of two crawls of the same {PAGES:,} generated pages, with `STORE_SYNC` on (the
    default) and off. The ratios are taken within a round. They depend on the machine's disk."""
)


@dataclass(frozen=True, slots=True)
class DurabilityRun:
    """One crawl: whether pages were synced, pages a second, and CPU ms a page."""

    sync: bool
    rate: float
    cpu: float
    others: float


def run(system: BenchSystem, *, small: bool) -> MeasuredRow:
    """Crawl with and without syncing, in rounds."""
    pages, rounds = (SMALL_PAGES, SMALL_ROUNDS) if small else (PAGES, ROUNDS)
    return shown([_measured(system, pages, sync=sync) for _ in range(rounds) for sync in (True, False)])


def _measured(system: BenchSystem, pages: int, *, sync: bool) -> DurabilityRun:
    forms = [SiteForm(WARM_UP), SiteForm(pages)]
    with serve_generated(forms) as (first, site), running_crawler(system, STORE_SYNC=sync) as crawler:
        crawler.post(first.url)
        crawler.wait_for_end(first.domain, WARM_UP, TIMEOUT)
        before, began = crawler.usage(), time.monotonic()
        crawler.post(site.url)
        crawler.wait_for_end(site.domain, pages, TIMEOUT)
        wall, after = time.monotonic() - began, crawler.usage()
    spent = sum(cpu_ms(after.since(before), pages).values())
    return DurabilityRun(sync, pages / wall, spent, machine_share_of_others(after, before))


def shown(runs: Sequence[DurabilityRun]) -> MeasuredRow:
    """Return the table of the runs."""
    on, off = ([run for run in runs if run.sync is sync] for sync in (True, False))
    rows = tuple(
        (
            f"STORE_SYNC={'true' if own is on else 'false'}",
            spread([run.rate for run in own]).text(0),
            ratios([run.rate for run in own], [run.rate for run in off]).text(2),
            spread([run.cpu for run in own]).text(1),
            ratios([run.cpu for run in own], [run.cpu for run in off]).text(2),
        )
        for own in (on, off)
    )
    header = ("setting", "pages/s", "times without", "CPU ms/page", "times without")
    table = FigureTable("Syncing pages to the disk", header, rows)
    return MeasuredRow((), (table,), others=max(run.others for run in runs))
