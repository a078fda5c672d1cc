"""Row `growth`: CPU time and Redis memory of a page by the size of its site."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.figures import FigureTable, MeasuredRow, bullets, verdict_below
from benchmarks.generated_sites import GeneratedSite, SiteForm, serve_generated
from benchmarks.plots import Plot
from benchmarks.system import (
    GROUPS,
    BenchSystem,
    RunningCrawler,
    cpu_ms,
    has_ended,
    machine_share_of_others,
    running_crawler,
)

#: Pages of the site, and of the one that is crawled before the measurements.
SIZES, SMALL_SIZES, WARM_UP = (200, 2_000, 20_000), (100, 1_000), 200
#: Seconds in which a crawl must end.
TIMEOUT = 600.0
#: Seconds between two looks at the memory of Redis.
INTERVAL = 0.2
#: Aims: bytes of Redis a page at the peak of a crawl, and after it.
DURING_AIM, AFTER_AIM = 300.0, 100.0

METHOD = bullets(
    f"""Growth: whole crawls of one site of generated pages, one after the other with the same processes. One of
    {WARM_UP} pages before them is not counted. Each page has ten links to new pages: after a tenth of the
    crawl all others wait in the backlog. `used_memory_dataset` of Redis, which is keys and values without
    buffers, is read each {INTERVAL:g} s. *During* is its peak above the value before the crawl. *After* is
    what is left at the end; a finished crawl stays in Redis for a week. Both are divided by the pages."""
)


@dataclass(frozen=True, slots=True)
class GrowthRun:
    """One size: seconds, CPU ms a page by group of processes, and bytes of Redis during the crawl and after it."""

    pages: int
    seconds: float
    cpu: Mapping[str, float]
    during: float
    after: float
    others: float

    @property
    def all_cpu(self) -> float:
        """CPU ms a page of all processes."""
        return sum(self.cpu.values())


def run(system: BenchSystem, *, small: bool) -> MeasuredRow:
    """Measure each size."""
    sizes = SMALL_SIZES if small else SIZES
    forms = [SiteForm(pages) for pages in (WARM_UP, *sizes)]
    with serve_generated(forms) as (first, *sites), running_crawler(system) as crawler:
        crawler.post(first.url)
        crawler.wait_for_end(first.domain, WARM_UP, TIMEOUT)
        return shown([_measured(crawler, site) for site in sites])


def _measured(crawler: RunningCrawler, site: GeneratedSite) -> GrowthRun:
    baseline, before, began = _memory(crawler), crawler.usage(), time.monotonic()
    crawler.post(site.url)
    peak = baseline
    while not has_ended(crawler.progress(site.domain)):
        peak = max(peak, _memory(crawler))
        if time.monotonic() > began + TIMEOUT:
            break
        time.sleep(INTERVAL)
    wall, after, pages = time.monotonic() - began, crawler.usage(), site.form.pages
    crawler.wait_for_end(site.domain, pages, INTERVAL)
    crawler.wait_for_record(site.domain)
    return GrowthRun(
        pages=pages,
        seconds=wall,
        cpu=cpu_ms(after.since(before), pages),
        during=(peak - baseline) / pages,
        after=(_memory(crawler) - baseline) / pages,
        others=machine_share_of_others(after, before),
    )


def _memory(crawler: RunningCrawler) -> int:
    return int(crawler.redis.info("memory")["used_memory_dataset"])


def shown(runs: Sequence[GrowthRun]) -> MeasuredRow:
    """Return tables, aims and plots of the runs."""
    largest = runs[-1]
    aims = tuple(
        (
            f"Redis bytes a page {moment} a crawl of {largest.pages:,} pages",
            f"<= {aim:g}",
            f"{reached:.0f}",
            verdict_below(reached, aim),
        )
        for moment, reached, aim in (("during", largest.during, DURING_AIM), ("after", largest.after, AFTER_AIM))
    )
    rows = {
        "pages a second": [f"{run.pages / run.seconds:.0f}" for run in runs],
        **{f"CPU ms a page, {group}": [f"{run.cpu[group]:.2f}" for run in runs] for group in GROUPS},
        "CPU ms a page, all": [f"{run.all_cpu:.2f}" for run in runs],
        "the same, times that of the smallest site": [f"{run.all_cpu / runs[0].all_cpu:.2f}" for run in runs],
        "Redis bytes a page, during": [f"{run.during:.0f}" for run in runs],
        "Redis bytes a page, after": [f"{run.after:.0f}" for run in runs],
    }
    table = FigureTable.of_figures("One site by its size", (f"{run.pages:,} pages" for run in runs), rows)
    return MeasuredRow(aims, (table,), _plots(runs), max(run.others for run in runs))


def _plots(runs: Sequence[GrowthRun]) -> tuple[Plot, Plot]:
    lines = {"all processes": [(run.pages, run.all_cpu) for run in runs]}
    for name in ("worker: pool", "worker: parent", "RabbitMQ"):
        lines[name] = [(run.pages, run.cpu[name]) for run in runs]
    cpu = Plot("cpu", "CPU time of a page", "pages of the site", "CPU ms a page", lines)
    memory = Plot(
        "redis-bytes",
        "Memory of Redis for a page",
        "pages of the site",
        "bytes a page",
        {
            "during": [(run.pages, run.during) for run in runs],
            "after": [(run.pages, run.after) for run in runs],
        },
        aim=DURING_AIM,
    )
    return cpu, memory
