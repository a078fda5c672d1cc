"""Crawl a real site with the whole system: private services, and the Procfile's worker. Scrapy crawls it, too."""

from __future__ import annotations

import itertools
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from app.crawl.urls import canonical_key
from app.machine import tail, wait_until
from app.storage.folder import FolderStore
from app.storage.layout import Page, content_prefix, from_json
from benchmarks.errors import BenchmarkError
from benchmarks.sites import ServedSites
from benchmarks.system import PROCESSES, BenchSystem, RunningCrawler, has_ended, running_crawler
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
