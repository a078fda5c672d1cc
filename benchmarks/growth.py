"""Row `growth`: what a page, a site, a timer and a parked message cost, by how many there are."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kombu import Connection, Queue

from app.timers.timers import Callback, Timers
from app.topology.queues import site_exchange
from benchmarks import parked, placement
from benchmarks.figures import FigureTable, MeasuredRow, at_most, bullets
from benchmarks.generated_sites import GeneratedSite, SiteForm, serve_generated
from benchmarks.parked import ParkedFigures
from benchmarks.placement import PlacementRun
from benchmarks.plots import Plot
from benchmarks.system import (
    RunningCrawler,
    cpu_ms,
    cpu_rows,
    has_ended,
    running_crawler,
    start_system,
)

#: Pages of the site that is crawled before the measurements.
WARM_UP = 200
#: Seconds in which a crawl must end.
TIMEOUT = 1_800.0
#: Seconds between two looks at the memory of Redis.
INTERVAL = 0.2
#: Aims: bytes of Redis a page at the peak of a crawl, and after it.
DURING_AIM, AFTER_AIM = 300.0, 100.0
#: Aim: seconds until all timers have fired. Their callbacks go to a queue from which no process takes them.
TIMERS_AIM, TIMERS_QUEUE = 5.0, "bench.timers"
#: Timers that are started in a second, and seconds beside it until all are due.
STARTED, SPARE = 2_000, 3.0

METHOD = (
    bullets(
        """Growth: the exponent is the slope of the CPU time of one unit over the number of units, both logarithmic.
        With 0, the cost of all is in proportion to their number.""",
        f"""Pages: whole crawls of one site of generated pages, one after the other with the same processes. One of
        {WARM_UP} pages before them is not counted. Each page has ten links to new pages: after a tenth of the
        crawl all others wait in the backlog. `used_memory_dataset` of Redis, which is keys and values without
        buffers, is read each {INTERVAL:g} s. *During* is its peak above the value before the crawl. *After* is
        what is left at the end; a finished crawl stays in Redis for a week. Both are divided by the pages.""",
        """Timers: all are due at the same moment, while worker and beat run. The time counts until the last callback is
        confirmed, and its timer removed.""",
    )
    + placement.METHOD
    + parked.METHOD
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


@dataclass(frozen=True, slots=True)
class TimersRun:
    """One size: seconds until all timers have fired, and CPU ms of each in all processes."""

    timers: int
    seconds: float
    cpu: float


class GrowthSizes(NamedTuple):
    """Pages of the sites, packs, timers, and messages in quorum queues; the number of those in classic queues."""

    pages: Sequence[int]
    packs: Sequence[int]
    timers: Sequence[int]
    parked: Sequence[int]
    classic: int


SMALL = GrowthSizes((100, 1_000), (10, 100), (10, 100), (100, 1_000), 1_000)
SIZES = GrowthSizes((200, 2_000, 20_000), (100, 1_000, 10_000), (100, 1_000, 10_000), (1_000, 10_000, 100_000), 100_000)
#: Of ten times as many units. It takes an hour.
LONG = GrowthSizes((2_000, 20_000, 200_000), SIZES.packs, SIZES.timers, (10_000, 100_000, 1_000_000), 1_000)


@dataclass(frozen=True, slots=True)
class Growth:
    """The runs of each axis, in order of their sizes."""

    pages: Sequence[GrowthRun]
    packs: Sequence[PlacementRun]
    timers: Sequence[TimersRun]
    parked: Sequence[ParkedFigures]
    classic: ParkedFigures

    @property
    def cost(self) -> dict[str, list[tuple[int, float]]]:
        """Number and CPU ms of a unit in each run, by axis."""
        return {
            "page crawled": [(run.pages, sum(run.cpu.values())) for run in self.pages],
            "pack placed": [(run.packs, 1_000 * run.cpu / run.packs) for run in self.packs],
            "timer fired": [(run.timers, run.cpu) for run in self.timers],
            "message parked": [(run.count, 1_000 * run.cpu / run.count) for run in self.parked],
        }


def run(folder: Path, sizes: GrowthSizes) -> MeasuredRow:
    """Measure each size of each axis, with services whose data are in `folder`."""
    forms = [SiteForm(pages) for pages in (WARM_UP, *sizes.pages)]
    with (
        start_system(folder) as system,
        serve_generated(forms) as (first, *sites),
        running_crawler(system, MAX_PAGES=max(sizes.pages)) as crawler,
    ):
        crawler.post(first.url)
        crawler.wait_for_end(first.domain, WARM_UP, TIMEOUT)
        crawls = [_measured(crawler, site) for site in sites]
        fired = [_fired(crawler, size) for size in sizes.timers]
    with start_system(folder) as system:
        quorum = [parked.run(system, "quorum", count) for count in sizes.parked]
    # Memory that Erlang keeps would count for the next queues.
    with start_system(folder) as system:
        classic = parked.run(system, "classic", sizes.classic)
    return shown(Growth(crawls, placement.run(sizes.packs), fired, quorum, classic))


def _measured(crawler: RunningCrawler, site: GeneratedSite) -> GrowthRun:
    baseline, before, began = _memory(crawler), crawler.usage(), time.monotonic()
    crawler.post(site.url)
    peak = baseline
    while not has_ended(crawler.progress(site.domain)):
        peak = max(peak, _memory(crawler))
        if time.monotonic() > began + TIMEOUT:
            break
        time.sleep(INTERVAL)
    wall, spent, pages = time.monotonic() - began, crawler.usage().since(before), site.form.pages
    crawler.wait_for_end(site.domain, pages, INTERVAL)
    crawler.wait_for_record(site.domain)
    return GrowthRun(
        pages=pages,
        seconds=wall,
        cpu=cpu_ms(spent.cpu, pages),
        during=(peak - baseline) / pages,
        after=(_memory(crawler) - baseline) / pages,
        others=spent.others,
    )


def _fired(crawler: RunningCrawler, size: int) -> TimersRun:
    """Let `size` timers be due at once, and wait until all have fired."""
    with Connection(crawler.system.settings.broker) as connection:
        queue = Queue(TIMERS_QUEUE, site_exchange, TIMERS_QUEUE, queue_arguments={"x-queue-type": "quorum"})
        queue(connection.default_channel).declare()
        timers, due = Timers(crawler.redis), time.monotonic() + SPARE + size / STARTED
        # The crawled sites have timers, too.
        later = timers.count()
        for domain in (f"site-{number}.example" for number in range(size)):
            callback = Callback(TIMERS_QUEUE, {"type": "pack_incremental", "domain": domain})
            timers.start(domain, timeout=due - time.monotonic(), callback=callback)
        time.sleep(max(0.0, due - time.monotonic()))
        before = crawler.usage()
        crawler.wait(lambda: timers.count() == later, TIMEOUT, f"{size} timers have fired")
        seconds, spent = time.monotonic() - due, cpu_ms(crawler.usage().since(before).cpu, size)
        queue(connection.default_channel).delete()
    return TimersRun(size, seconds, sum(spent.values()))


def _memory(crawler: RunningCrawler) -> int:
    return int(crawler.redis.info("memory")["used_memory_dataset"])


def shown(growth: Growth) -> MeasuredRow:
    """Return tables, aims and plots of the runs."""
    pages, last = growth.pages[-1], growth.timers[-1]
    aims = (
        at_most(f"Redis bytes a page during a crawl of {pages.pages:,} pages", DURING_AIM, pages.during, digits=0),
        at_most(f"Redis bytes a page after a crawl of {pages.pages:,} pages", AFTER_AIM, pages.after, digits=0),
        *placement.aims(growth.packs[-1]),
        at_most(
            f"seconds until {last.timers:,} timers have fired that are due at once", TIMERS_AIM, last.seconds, digits=1
        ),
        *parked.aims(growth.parked[-1]),
        *parked.aims(growth.classic),
    )
    tables = (
        _cost_table(growth.cost),
        _pages_table(growth.pages),
        placement.table(growth.packs),
        parked.table([*growth.parked, growth.classic]),
    )
    others = [run.others for run in growth.pages] + [run.others for run in (*growth.parked, growth.classic)]
    plot = Plot(
        f"growth-{pages.pages}",
        "CPU time of one by their number",
        "times the smallest number",
        "CPU ms",
        {unit: [(number / points[0][0], ms) for number, ms in points] for unit, points in growth.cost.items()},
        log_y=True,
    )
    return MeasuredRow(aims, tables, (plot,), max(others))


def _cost_table(cost: Mapping[str, Sequence[tuple[int, float]]]) -> FigureTable:
    rows = []
    for unit, points in cost.items():
        slope, _ = statistics.linear_regression(
            *([math.log(each) for each in axis] for axis in zip(*points, strict=True))
        )
        sizes = " / ".join(f"{number:,}" for number, _ in points)
        rows.append((f"{unit}, of {sizes}", *(f"{ms:.3f}" for _, ms in points), f"{slope:+.2f}"))
    return FigureTable("Growth", ("CPU ms of a", *("1x", "10x", "100x")[: len(points)], "exponent"), tuple(rows))


def _pages_table(runs: Sequence[GrowthRun]) -> FigureTable:
    rows = {
        "pages a second": [f"{run.pages / run.seconds:.0f}" for run in runs],
        **cpu_rows("a page", [run.cpu for run in runs]),
        "Redis bytes a page, during": [f"{run.during:.0f}" for run in runs],
        "Redis bytes a page, after": [f"{run.after:.0f}" for run in runs],
    }
    return FigureTable.of_figures("One site by its size", (f"{run.pages:,} pages" for run in runs), rows)
