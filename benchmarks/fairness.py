"""Row `fairness`: seconds until the first page of a new site is fetched while pages of another site wait."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from benchmarks.errors import BenchmarkError
from benchmarks.figures import FigureTable, MeasuredRow, at_most, bullets
from benchmarks.generated_sites import GeneratedSite, SiteForm, serve_generated
from benchmarks.plots import Plot
from benchmarks.system import BenchSystem, running_crawler

#: Pages of the other site that wait.
SIZES, SMALL_SIZES = (1_000, 10_000, 100_000), (1_000, 5_000)
#: Seconds between a response and the next request to its host.
DELAYS = (0.0, 1.0)
#: Links of a page at most, as the crawler follows.
LINKS = 5_000
#: Pages of the new site.
NEW_PAGES = 500
#: Seconds after its first linked page in which the share of both sites is counted, and as many delays more.
SHARE_SECONDS, SHARE_DELAYS = 1.0, 4
#: Seconds until the backlog is filled, and until the new site's pages are requested, before the benchmark fails.
FILL_TIMEOUT, FIRST_TIMEOUT = 120.0, 120.0
#: Aim: seconds until the first page, beside 10,000 or 100,000 waiting pages.
AIM, AIM_FROM = 2.0, 10_000

METHOD = bullets(
    f"""Fairness: one site of generated pages, whose first pages have up to {LINKS:,} links, fills its backlog.
    Then the message `index+crawl` of a second site is posted. *First page* is the time until its start page
    is requested. *First linked page* is the time until the first page that it links to is requested. A
    host's `robots.txt` is requested before both: with a delay of 1 s they cannot come before 1 s and 2 s.
    The share counts the requests to both sites in the next {SHARE_SECONDS:g} s and {SHARE_DELAYS} delays.
    `MAX_PAGES` is 300,000."""
)


@dataclass(frozen=True, slots=True)
class FairnessRun:
    """One run: pages that waited, the delay of the hosts, and seconds until the new site's first two pages.

    `share` is the new site's share of the requests that followed, 0 to 1.
    """

    size: int
    waiting: int
    delay: float
    first_page: float
    first_linked_page: float
    share: float
    others: float


def run(system: BenchSystem, *, small: bool) -> MeasuredRow:
    """Measure each number of waiting pages, without and with a delay."""
    sizes = SMALL_SIZES if small else SIZES
    return shown([_measured(system, size, delay) for delay in DELAYS for size in sizes])


def _measured(system: BenchSystem, size: int, delay: float) -> FairnessRun:
    links = min(LINKS, size)
    # Pages are fetched while the backlog fills.
    forms = [SiteForm(size + size // 10 + 1_000, links), SiteForm(NEW_PAGES)]
    with serve_generated(forms) as (old, new), running_crawler(system, HOST_DELAY=delay, MAX_PAGES=300_000) as crawler:
        crawler.post(old.url)
        crawler.wait(
            lambda: crawler.progress(old.domain).waiting >= size, FILL_TIMEOUT, f"{size:,} pages of the first site wait"
        )
        waiting, before, posted = crawler.progress(old.domain).waiting, crawler.usage(), time.monotonic()
        crawler.post(new.url)
        crawler.wait(lambda: len(new.first) > 1, FIRST_TIMEOUT, "a linked page of the new site is requested")
        share, spent = _share(old, new, SHARE_SECONDS + SHARE_DELAYS * delay), crawler.usage().since(before)
        if not crawler.progress(old.domain).waiting:
            raise BenchmarkError("the backlog of the first site was empty before the measurement ended")
    times = sorted(new.first.values())
    return FairnessRun(
        size=size,
        waiting=waiting,
        delay=delay,
        first_page=times[0] - posted,
        first_linked_page=times[1] - posted,
        share=share,
        others=spent.others,
    )


def _share(old: GeneratedSite, new: GeneratedSite, seconds: float) -> float:
    """Return the new site's share of the requests of the next seconds."""
    before = old.requests, new.requests
    time.sleep(seconds)
    old_requests, new_requests = old.requests - before[0], new.requests - before[1]
    return new_requests / max(1, old_requests + new_requests)


def shown(runs: Sequence[FairnessRun]) -> MeasuredRow:
    """Return tables, aims and plot of the runs."""
    aims = tuple(
        at_most(
            f"first page of a new site beside {run.size:,} waiting, {_delay_text(run.delay)}, s",
            AIM,
            run.first_page,
            digits=2,
        )
        for run in runs
        if run.size >= AIM_FROM
    )
    rows = tuple(
        (
            f"{run.waiting:,} waiting, {_delay_text(run.delay)}",
            f"{run.first_page:.2f}",
            f"{run.first_linked_page:.2f}",
            f"{run.share:.0%}",
        )
        for run in runs
    )
    header = ("other site", "first page, s", "first linked page, s", "share of the new site")
    lines = {
        f"{title}, {_delay_text(delay)}": [(run.waiting, value(run)) for run in runs if run.delay == delay]
        for title, value in (("start", attrgetter("first_page")), ("linked", attrgetter("first_linked_page")))
        for delay in DELAYS
    }
    plot = Plot(
        "first-page",
        "First page of a new site beside waiting pages of another",
        "waiting pages of the other site",
        "seconds until the first page",
        lines,
        aim=AIM,
        log_y=True,
    )
    table = FigureTable("A new site beside waiting pages of another", header, rows)
    return MeasuredRow(aims, (table,), (plot,), max(run.others for run in runs))


def _delay_text(delay: float) -> str:
    return f"delay {delay:g} s" if delay else "no delay"
