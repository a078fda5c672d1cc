"""Row `latency`: pages a second of many hosts that answer slowly."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.figures import FigureTable, MeasuredRow, at_least, bullets
from benchmarks.generated_sites import SiteForm, serve_generated
from benchmarks.system import BenchSystem, cpu_ms, running_crawler

#: Hosts, and seconds until each of them answers.
HOSTS, RESPONSE = 50, 0.2
#: Pages a second if each host has one request open at any time.
POSSIBLE = HOSTS / RESPONSE
#: Seconds that are measured after those in which every host begins.
SECONDS, SMALL_SECONDS, START_TIMEOUT = 20.0, 6.0, 90.0
#: Aim: percent of the possible pages a second.
AIM = 80.0

#: Environment variables of each run, by its title.
SETTINGS: Mapping[str, Mapping[str, int]] = {
    "HOST_CONCURRENCY=1": {"HOST_CONCURRENCY": 1},
    "defaults": {},
    "HOST_CONCURRENCY=1, WORKER_CONCURRENCY=50": {"HOST_CONCURRENCY": 1, "WORKER_CONCURRENCY": HOSTS},
}

METHOD = bullets(
    f"""Latency: {HOSTS} hosts with sites of generated pages answer each request after {1_000 * RESPONSE:g} ms.
    With one request to each host at any time, {POSSIBLE:g} pages a second are possible. All shares are of
    that rate. It is measured for {SECONDS:g} s, after every host has answered twice. The number of
    responses that the worker's pool waits for at the same time bounds the rate. In the last run each host
    has a pool process."""
)


@dataclass(frozen=True, slots=True)
class LatencyRun:
    """One run: its settings, pages a second, and the CPU ms a page by group of processes."""

    title: str
    rate: float
    cpu: Mapping[str, float]
    others: float


def run(system: BenchSystem, *, small: bool) -> MeasuredRow:
    """Measure each of SETTINGS."""
    seconds = SMALL_SECONDS if small else SECONDS
    return shown([_measured(system, title, settings, seconds) for title, settings in SETTINGS.items()])


def _measured(system: BenchSystem, title: str, settings: Mapping[str, int], seconds: float) -> LatencyRun:
    # No site ends during the measurement, even if one gets all requests.
    form = SiteForm(pages=20_000, links=50, seconds=RESPONSE)
    with serve_generated([form] * HOSTS) as sites, running_crawler(system, **settings) as crawler:
        crawler.post(*(site.url for site in sites))
        crawler.wait(lambda: all(site.requests > 1 for site in sites), START_TIMEOUT, "every host has answered twice")
        before, began, requests = crawler.usage(), time.monotonic(), sum(site.requests for site in sites)
        time.sleep(seconds)
        wall, spent = time.monotonic() - began, crawler.usage().since(before)
        pages = sum(site.requests for site in sites) - requests
    return LatencyRun(title, pages / wall, cpu_ms(spent.cpu, pages), spent.others)


def shown(runs: Sequence[LatencyRun]) -> MeasuredRow:
    """Return table and aims of the runs."""
    figure = f"share of the possible pages a second, {HOSTS} slow hosts"
    aims = tuple(at_least(f"{figure}, {run.title}", AIM, 100 * run.rate / POSSIBLE, digits=0, unit="%") for run in runs)
    rows = tuple(
        (run.title, f"{run.rate:.0f}", f"{run.rate / POSSIBLE:.0%}", f"{sum(run.cpu.values()):.1f}") for run in runs
    )
    header = ("settings", "pages/s", f"share of {POSSIBLE:g} pages/s", "CPU ms/page")
    title = f"{HOSTS} hosts that answer in {1_000 * RESPONSE:g} ms"
    return MeasuredRow(aims, (FigureTable(title, header, rows),), others=max(run.others for run in runs))
