"""Tables, aims and method of the crawls of real sites."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.crawl import CrawlRun
from benchmarks.figures import FigureTable, MeasuredRow, Spread, at_least, at_most, ratios, spread
from benchmarks.profile import Share

#: Runs in the order of their rounds, and profiles of the worker, by site.
Crawls = Mapping[str, Sequence[CrawlRun]]
Profiles = Mapping[str, Sequence[Share]]

#: Aims by site: pages per second, as a multiple of Scrapy's, and CPU ms a page.
CRAWL_AIMS = {"postgresql-doc-15": 3.0, "python3.11-doc": 10.0}
CPU_AIMS = {"postgresql-doc-15": 4.0, "python3.11-doc": 7.0}
PEER = "Scrapy"

METHOD = """\
- Crawl: each round runs every contestant once on a site, one after the other. A ratio is taken within its round. Shown
  are medians with the lowest and the highest run.
- Perennial is the whole system: a private RabbitMQ and Redis, the Procfile's `worker` with its task events, an empty
  folder store. The time runs from the post of one `index+crawl` message until the frontier has no open message, checked
  every 50 ms. Pages are the objects in the store. The worker is started before the clock.
- Scrapy: as many requests to the host at the same time as `HOST_CONCURRENCY` allows by default (8), and no delay.
  It obeys robots.txt, finds text by XPath and links by `LinkExtractor`, and writes one JSON line per page. The time
  runs from its first request to its last page, without start and end of its process. Perennial, too, has at most
  `HOST_CONCURRENCY` requests to the host open.
- Both found the same set of canonical URLs in every run, or the benchmark would have stopped. `/` and `/index.html`
  are two of them.
- CPU is user and system time of all processes of a contestant. For Perennial these are the worker with its pool,
  RabbitMQ and Redis. The web server (nginx, one process, no gzip) counts for neither.
- `HOST_DELAY=0` and `ALLOW_PRIVATE_HOSTS=127.0.0.0/8`; all other settings have their defaults. `packer`, `beat`, `web`
  and `flower` do not run, because a crawl needs none of them.
"""


def shown(crawls: Crawls, profiles: Profiles) -> MeasuredRow:
    """Return tables and aims of the runs."""
    aims = []
    for site, runs in crawls.items():
        own, cpu = best(runs), spread([run.cpu_ms_per_page for run in of(runs, best(runs))])
        rate = f"pages a second, {site}, times Scrapy ({own})"
        aims.append(at_least(rate, CRAWL_AIMS[site], crawl_ratio(runs, own), digits=2))
        aims.append(at_most(f"CPU ms a page, {site} ({own})", CPU_AIMS[site], cpu, digits=1))
    tables = [crawl_table(site, runs) for site, runs in crawls.items()]
    tables.append(processes_table(crawls))
    tables += [profile_table(crawls, profiles)] if profiles else []
    others = max(run.others for runs in crawls.values() for run in runs)
    return MeasuredRow(tuple(aims), tuple(tables), others=others)


def best(runs: Sequence[CrawlRun]) -> str:
    """Return the Perennial contestant with the most pages per second."""
    names = {run.contestant for run in runs if run.contestant != PEER}
    return max(sorted(names), key=lambda name: statistics.median(r.pages_per_second for r in of(runs, name)))


def of(runs: Sequence[CrawlRun], contestant: str) -> list[CrawlRun]:
    """Return one contestant's runs, in the order of the rounds."""
    return [run for run in runs if run.contestant == contestant]


def crawl_ratio(runs: Sequence[CrawlRun], contestant: str) -> Spread:
    """Return a contestant's pages per second as a multiple of Scrapy's in the same round."""
    return ratios(*([run.pages_per_second for run in of(runs, name)] for name in (contestant, PEER)))


def cpu_ratio(runs: Sequence[CrawlRun], contestant: str) -> Spread:
    """Return a contestant's CPU time per page as a multiple of Scrapy's in the same round."""
    return ratios(*([run.cpu_ms_per_page for run in of(runs, name)] for name in (contestant, PEER)))


def crawl_table(site: str, runs: Sequence[CrawlRun]) -> FigureTable:
    """Return the figures of every contestant on one site."""
    contestants = sorted({run.contestant for run in runs})
    header = ("contestant", "pages/s", "times Scrapy", "CPU ms/page", "times Scrapy", "others")
    title = f"{site}: {len(runs[0].pages)} pages; rounds: {len(of(runs, PEER))}"
    return FigureTable(title, header, tuple(_crawl_row(runs, name) for name in contestants))


def _crawl_row(runs: Sequence[CrawlRun], name: str) -> tuple[str, ...]:
    own = of(runs, name)
    return (
        name,
        spread([run.pages_per_second for run in own]).text(0),
        "1" if name == PEER else crawl_ratio(runs, name).text(2),
        spread([run.cpu_ms_per_page for run in own]).text(1),
        "1" if name == PEER else cpu_ratio(runs, name).text(2),
        spread([100 * run.others for run in own]).text(0) + " %",
    )


def processes_table(crawls: Crawls) -> FigureTable:
    """Return CPU time by process, for the best Perennial contestant on each site."""
    own = {site: of(runs, best(runs)) for site, runs in crawls.items()}
    rows = [(title, *(f"{_cpu_ms(runs, groups):.2f}" for runs in own.values())) for title, groups in PROCESSES.items()]
    commands = ([sum(run.redis_commands.values()) / len(run.pages) for run in runs] for runs in own.values())
    medians = (f"{statistics.median(each):.1f}" for each in commands)
    rows.append(("Redis commands a page, those in scripts included", *medians))
    header = ("CPU ms a page", *(f"{site} ({best(crawls[site])})" for site in own))
    return FigureTable("CPU time by process", header, tuple(rows))


#: Titles of the groups of processes that a run measures.
PROCESSES = {
    "worker: parent": ("worker",),
    "worker: pool": ("worker children",),
    "RabbitMQ": ("RabbitMQ", "RabbitMQ children"),
    "Redis": ("Redis", "Redis children"),
}


def _cpu_ms(runs: Sequence[CrawlRun], groups: Sequence[str]) -> float:
    return statistics.median(1_000 * sum(run.cpu[group] for group in groups) / len(run.pages) for run in runs)


def profile_table(crawls: Crawls, profiles: Profiles) -> FigureTable:
    """Return the worker's CPU time by purpose: share of its process's samples, and that share of its ms per page."""
    keys = list(dict.fromkeys((share.role, share.purpose) for shares in profiles.values() for share in shares))
    cells = {site: _purposes(crawls[site], shares) for site, shares in profiles.items()}
    rows = [
        (f"{role}: {figure}", *(cell for site in cells for cell in cells[site].get((role, figure), ("-", "-"))))
        for role, figure in sorted(keys, key=lambda key: key[0])
    ]
    header = ("worker", *(title for site in cells for title in (f"{site}: share", "ms/page")))
    return FigureTable("What the worker's CPU time is for", header, tuple(rows))


def _purposes(runs: Sequence[CrawlRun], shares: Sequence[Share]) -> dict[tuple[str, str], tuple[str, str]]:
    own = of(runs, best(runs))
    spent = {"parent": _cpu_ms(own, ["worker"]), "pool": _cpu_ms(own, ["worker children"])}
    return {(each.role, each.purpose): (f"{each.share:.0%}", f"{each.share * spent[each.role]:.2f}") for each in shares}
