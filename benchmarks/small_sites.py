"""Row `small-sites`: CPU time of sites of three pages, from the first message of the crawl to the loaded pack."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.figures import FigureTable, MeasuredRow, at_most, bullets
from benchmarks.generated_sites import GeneratedSite, SiteForm, serve_generated
from benchmarks.system import (
    WITH_SEARCH,
    BenchSystem,
    RunningCrawler,
    cpu_ms,
    cpu_rows,
    running_crawler,
)

#: Pages of a site; sites that are measured, and those before them.
PAGES, SITES, SMALL_SITES, WARM_UP = 3, 300, 50, 50
#: Seconds in which all sites must be loaded.
TIMEOUT = 600.0
#: Aim: CPU ms a page of all processes.
AIM = 20.0

METHOD = bullets(
    f"""Small sites: {SITES} sites of {PAGES} generated pages each are crawled together, packed after a timer of
    1 s, and loaded by one searcher. {WARM_UP} sites before them are not counted. Orchestrator and searcher run,
    too. *Redis commands* are those of the scripts, too."""
)


@dataclass(frozen=True, slots=True)
class SmallSitesRun:
    """CPU ms a page by group of processes, and Redis commands and calls of scripts a page."""

    cpu: Mapping[str, float]
    commands: float
    scripts: float
    others: float


def run(system: BenchSystem, *, small: bool) -> MeasuredRow:
    """Measure the sites."""
    return shown(measured(system, SMALL_SITES if small else SITES))


def measured(system: BenchSystem, sites: int) -> SmallSitesRun:
    """Crawl, pack and load this number of sites."""
    shutil.rmtree(system.settings.data_dir / "searchers", ignore_errors=True)
    forms = [SiteForm(PAGES)] * (WARM_UP + sites)
    with (
        serve_generated(forms) as served,
        running_crawler(system, WITH_SEARCH, TIMER_TIMEOUT=1, REPLICAS=1) as crawler,
    ):
        _index(crawler, served[:WARM_UP], loaded=WARM_UP)
        crawler.redis.config_resetstat()
        before = crawler.usage()
        _index(crawler, served[WARM_UP:], loaded=len(served))
        spent, pages = crawler.usage().since(before), PAGES * sites
        calls = crawler.redis_calls()
    return SmallSitesRun(
        cpu=cpu_ms(spent.cpu, pages),
        commands=sum(calls.values()) / pages,
        scripts=(calls.get("evalsha", 0) + calls.get("eval", 0)) / pages,
        others=spent.others,
    )


def _index(crawler: RunningCrawler, sites: Sequence[GeneratedSite], *, loaded: int) -> None:
    log = crawler.home / "searcher.log"
    crawler.post(*(site.url for site in sites))
    crawler.wait(lambda: log.read_text().count("serving generation") >= loaded, TIMEOUT, f"{loaded} packs are loaded")


def shown(run: SmallSitesRun) -> MeasuredRow:
    """Return table and aim of the run."""
    aim = at_most("CPU ms a page of small sites", AIM, sum(run.cpu.values()), digits=1)
    rows = {
        **cpu_rows("a page", [run.cpu]),
        "Redis commands a page": [f"{run.commands:.1f}"],
        "calls of Redis scripts a page": [f"{run.scripts:.1f}"],
    }
    table = FigureTable.of_figures("Sites of three pages", (f"{SITES} sites",), rows)
    return MeasuredRow((aim,), (table,), others=run.others)
