"""Row `polite`: hops and CPU time of pages of hosts with a delay, by the size of their sites."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.machine import wait_until
from benchmarks.figures import FigureTable, MeasuredRow, at_least, at_most, bullets
from benchmarks.generated_sites import GeneratedSite, SiteForm, serve_generated
from benchmarks.plots import Plot
from benchmarks.system import (
    STATISTICS_LAG,
    BenchSystem,
    cpu_ms,
    cpu_rows,
    has_ended,
    page_counts,
    running_crawler,
)
from config.routes import PAGE, SITE

HOSTS = 10
#: Pages of each host.
SIZES, SMALL_SIZES = (100, 1_000, 10_000), (20, 1_000)
#: Seconds between a response and the next request to its host. The default is four times as long.
DELAY = 0.25
#: Seconds that are measured of a crawl that has not ended.
SECONDS, SMALL_SECONDS = 45.0, 8.0
#: Links of a page: all pages of a site are known after few of them.
LINKS = 1_000
#: Aims for the hops of a page, by the pages of a host. The second one is meant for hosts of 100,000 pages.
HOP_AIMS = {1_000: 2.0, 10_000: 4.0}
#: Aim: percent of the pages a second that the delay allows.
RATE_AIM = 80.0

METHOD = bullets(
    f"""Polite: {HOSTS} hosts with sites of generated pages, and `HOST_DELAY={DELAY:g}`. Only the delay is
    scaled: one request each {DELAY:g} s in place of one a second. Both are the duration of a delay queue,
    so a page takes the same hops. Responses, hand-overs and delay queues are not scaled. Their share of the
    time is four times as large here, and so is what the rate loses by them.""",
    f"""In that row the start pages link to all other pages. CPU time and pages a second are measured from the
    moment at which all pages are known, for {SECONDS:g} s or to the end. A crawl that has not ended is then
    cancelled: 10,000 pages of a host would take 42 minutes. Hops and deliveries are counted by the broker
    over the whole run: messages published to delay queues, and deliveries of `site.page`, for each page
    fetched. `tests/integration/test_hops.py` crawls 100,000 pages to the end, by a clock of its own.""",
)


@dataclass(frozen=True, slots=True)
class PoliteRun:
    """One size: pages and seconds that were measured, and the CPU ms a page by group of processes.

    `hops` and `deliveries` are those of a page.
    """

    size: int
    pages: int
    seconds: float
    hops: float
    deliveries: float
    cpu: Mapping[str, float]
    others: float

    @property
    def rate_share(self) -> float:
        """Pages a second as a share, 0 to 1, of what the delay allows."""
        return self.pages / self.seconds * DELAY / HOSTS


def run(system: BenchSystem, *, small: bool) -> MeasuredRow:
    """Measure each size."""
    sizes, seconds = (SMALL_SIZES, SMALL_SECONDS) if small else (SIZES, SECONDS)
    return shown([_measured(system, size, seconds) for size in sizes])


def _measured(system: BenchSystem, size: int, seconds: float) -> PoliteRun:
    settings = system.settings
    with (
        serve_generated([SiteForm(size, LINKS)] * HOSTS) as sites,
        running_crawler(system, HOST_DELAY=DELAY) as crawler,
    ):
        time.sleep(STATISTICS_LAG)
        first_counts = page_counts(settings, queue=PAGE, namespace=SITE)
        crawler.post(*(site.url for site in sites))
        domains = [site.domain for site in sites]
        crawler.wait(lambda: all(crawler.progress(each).seen >= size for each in domains), 120, "all pages are known")
        before, began, requests = crawler.usage(), time.monotonic(), _requests(sites)
        wait_until(lambda: all(has_ended(crawler.progress(each)) for each in domains), seconds, every=0.25)
        wall, spent, pages = time.monotonic() - began, crawler.usage().since(before), _requests(sites) - requests
        for domain in domains:
            crawler.cancel(domain)
        time.sleep(STATISTICS_LAG)
        counts = page_counts(settings, queue=PAGE, namespace=SITE) - first_counts
        # The start page has messages of its own.
        fetched = _requests(sites) - HOSTS
    return PoliteRun(
        size=size,
        pages=pages,
        seconds=wall,
        hops=counts.hops / fetched,
        deliveries=counts.deliveries / fetched,
        cpu=cpu_ms(spent.cpu, pages),
        others=spent.others,
    )


def _requests(sites: Sequence[GeneratedSite]) -> int:
    return sum(site.requests for site in sites)


def shown(runs: Sequence[PoliteRun]) -> MeasuredRow:
    """Return tables, aims and plots of the runs."""
    aims = [
        at_most(f"hops of a page, {HOSTS} hosts x {run.size:,} pages", aim, run.hops, digits=2)
        for run in runs
        if (aim := HOP_AIMS.get(run.size))
    ]
    last = runs[-1]
    figure = f"share of the pages a second that the delay allows, {HOSTS} hosts x {last.size:,} pages"
    aims.append(at_least(figure, RATE_AIM, 100 * last.rate_share, digits=0, unit="%"))
    rows = {
        "pages measured": [f"{run.pages:,}" for run in runs],
        "hops a page": [f"{run.hops:.2f}" for run in runs],
        "deliveries a page": [f"{run.deliveries:.2f}" for run in runs],
        f"pages a second; the delay allows {HOSTS / DELAY:g}": [f"{run.pages / run.seconds:.1f}" for run in runs],
        **cpu_rows("a page", [run.cpu for run in runs]),
    }
    title = f"{HOSTS} hosts, one request in {DELAY:g} s each"
    table = FigureTable.of_figures(title, (f"{run.size:,} pages a host" for run in runs), rows)
    hops = Plot(
        "hops",
        "Hops of a page of a polite host",
        "pages of each host",
        "hops a page",
        {"hops": [(run.size, run.hops) for run in runs]},
        aim=2.0,
    )
    return MeasuredRow(tuple(aims), (table,), (hops,), max(run.others for run in runs))
