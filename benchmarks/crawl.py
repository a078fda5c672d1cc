"""Crawl a real site with the whole system: private services, and the Procfile's worker. Scrapy crawls it, too."""

from __future__ import annotations

import itertools
import json
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from app.crawl.urls import canonical_key
from app.machine import tail, wait_until
from app.storage.folder import FolderStore
from app.storage.layout import Page, content_prefix, from_json
from benchmarks.errors import BenchmarkError
from benchmarks.figures import FigureTable, MeasuredRow, Spread, at_least, at_most, ratios, spread
from benchmarks.profile import Share
from benchmarks.sites import ServedSites
from benchmarks.system import GROUPS, PROCESSES, BenchSystem, RunningCrawler, has_ended, running_crawler
from benchmarks.usage import usage
from config.settings import Settings

#: Seconds after which a crawl counts as failed, and between two checks of the frontier.
TIMEOUT, INTERVAL = 300.0, 0.05
SCRAPY = Path(__file__).parent / "peers" / "scrapy_site.py"
#: Requests to the host at the same time: as many as Perennial may have open by default.
CONCURRENCY = int(Settings.model_fields["host_concurrency"].default)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlRun:
    """`pages` are the canonical keys of stored pages; `wall` and `cpu` are seconds, `cpu` by group of processes.

    `apart` is CPU time that does not count: of the web server, and before the first request. `others` is the share of
    the machine, 0 to 1, that other programs took.
    """

    site: str
    contestant: str
    pages: frozenset[str]
    wall: float
    cpu: Mapping[str, float]
    apart: Mapping[str, float]
    others: float
    redis_commands: Mapping[str, int] = field(default_factory=dict)

    @property
    def pages_per_second(self) -> float:
        """Stored pages per second of wall time."""
        return len(self.pages) / self.wall

    @property
    def cpu_ms_per_page(self) -> float:
        """Milliseconds of CPU time of all processes per stored page."""
        return 1_000 * sum(self.cpu.values()) / len(self.pages)


def crawl(
    site: str, served: ServedSites, system: BenchSystem, *, concurrency: int, profile: Path | None = None
) -> CrawlRun:
    """Crawl a served site with a new worker, empty store and empty Redis. `cpu` excludes the web server.

    With `profile`, py-spy samples the worker and writes its stacks to that file, which slows the crawl.
    """
    domain = urlsplit(served.urls[site]).netloc
    with running_crawler(system, {"worker": PROCESSES["worker"]}, WORKER_CONCURRENCY=concurrency) as crawler:
        groups = {**crawler.pids, **system.pids, "nginx": served.pid}
        with _profiled(crawler.pids["worker"], profile):
            crawler.redis.config_resetstat()
            before, began = usage(groups), time.perf_counter()
            crawler.post(served.urls[site])
            checks = _wait_for_end(crawler, domain)
            wall, spent = time.perf_counter() - began, usage(groups).since(before)
            commands, progress = crawler.redis_calls(), crawler.progress(domain)
            for name, calls in crawler.redis_calls().items():  # Those of one more check: the crawl's own are counted.
                if name in commands and name != "info":
                    commands[name] -= checks * (calls - commands[name])
        pages = _stored(crawler.home / "store", domain)
    if progress.dead or not pages:
        raise BenchmarkError(f"{site}: {len(pages)} pages stored, {progress.dead} dead letters: {progress}")
    cpu = {name: seconds for name, seconds in spent.cpu.items() if name.partition(" ")[0] not in ("own", "nginx")}
    return CrawlRun(
        site=site,
        contestant=f"Perennial -c {concurrency}",
        pages=pages,
        wall=wall,
        cpu=cpu,
        apart={"nginx": spent.cpu["nginx"] + spent.cpu["nginx children"]},
        others=spent.others,
        redis_commands=commands,
    )


def _wait_for_end(crawler: RunningCrawler, domain: str) -> int:
    """Wait until the crawl of a domain has ended. Return how often the frontier was checked."""
    checks = itertools.count()

    def is_ended() -> bool:
        next(checks)
        return has_ended(crawler.progress(domain))

    crawler.wait(is_ended, TIMEOUT, f"the crawl of {domain} has ended", every=INTERVAL)
    return next(checks)


def _stored(folder: Path, domain: str) -> frozenset[str]:
    """Return the canonical keys of the stored pages, without tombstones."""
    store = FolderStore(folder)
    contents = (from_json(store.get(stat.key).data) for stat in store.list(content_prefix(domain)))
    return frozenset(content.canonical_key for content in contents if isinstance(content, Page))


@contextmanager
def _profiled(pid: int, stacks: Path | None) -> Iterator[None]:
    """Sample the stacks of a process and its children with py-spy during the block."""
    if stacks is None:
        yield
        return
    command = [str(Path(sys.executable).with_name("py-spy")), "record", "--subprocesses", "--format", "raw"]
    command += ["--rate", "100", "--duration", "600", "--output", str(stacks), "--pid", str(pid)]
    log = stacks.with_suffix(".log")
    with log.open("wb") as output:
        spy = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        wait_until(lambda: spy.poll() is not None or "Sampling" in log.read_text(errors="replace"), 20)
        yield
    finally:
        spy.send_signal(signal.SIGINT)
        spy.wait(60)
    if not stacks.exists():
        raise BenchmarkError(f"py-spy wrote no stacks:\n{tail(log)}")


def scrapy(site: str, served: ServedSites, folder: Path) -> CrawlRun:
    """Crawl a served site with Scrapy, with its files below `folder`.

    `cpu` and `wall` count from the first request to the last page. Starting and ending the process is in `apart`.
    """
    with tempfile.TemporaryDirectory(prefix="scrapy-", dir=folder) as name:
        home = Path(name)
        before = usage({"nginx": served.pid})
        files = [f"{home}/items.jl", f"{home}/figures"]
        process_cpu = _run([sys.executable, str(SCRAPY), served.urls[site], *files, str(CONCURRENCY)], home)
        spent = usage({"nginx": served.pid}).since(before)
        figures = json.loads((home / "figures").read_text())
        with (home / "items.jl").open() as lines:
            pages = frozenset(canonical_key(json.loads(line)["url"]) for line in lines)
    nginx = spent.cpu["nginx"] + spent.cpu["nginx children"]
    return CrawlRun(
        site=site,
        contestant="Scrapy",
        pages=pages,
        wall=figures["wall"],
        cpu={"scrapy": figures["cpu"]},
        apart={"nginx": nginx, "start and end": process_cpu - figures["cpu"]},
        others=spent.others,
    )


def _run(command: list[str], home: Path) -> float:
    """Run a command to its end. Return its CPU seconds with children, as the kernel reports them to its parent."""
    log, before = home / "log", resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        with log.open("wb") as output:
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=TIMEOUT, check=True, cwd=home
            )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"Scrapy did not end within {TIMEOUT:g} s") from error
    except subprocess.CalledProcessError as error:
        raise BenchmarkError(f"Scrapy ended with {error.returncode}:\n{tail(log)}") from error
    # Of the processes that have ended: the services run on.
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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
    rows = [
        (title, *(f"{_cpu_ms(runs, GROUPS[title]):.2f}" for runs in own.values()))
        for title in ("worker: parent", "worker: pool", "RabbitMQ", "Redis")
    ]
    commands = ([sum(run.redis_commands.values()) / len(run.pages) for run in runs] for runs in own.values())
    medians = (f"{statistics.median(each):.1f}" for each in commands)
    rows.append(("Redis commands a page, those in scripts included", *medians))
    header = ("CPU ms a page", *(f"{site} ({best(crawls[site])})" for site in own))
    return FigureTable("CPU time by process", header, tuple(rows))


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
