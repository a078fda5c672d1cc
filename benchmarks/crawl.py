"""Crawl a real site with the whole system: private RabbitMQ and Redis, and the Procfile's worker."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from app.machine import tail, wait_until
from app.storage.folder import FolderStore
from app.storage.layout import Page, content_prefix, from_json
from benchmarks.errors import BenchmarkError
from benchmarks.runs import CrawlRun
from benchmarks.sites import ServedSites
from benchmarks.system import PROCESSES, BenchSystem, RunningCrawler, has_ended, running_crawler
from benchmarks.usage import usage

#: Seconds after which a crawl counts as failed, and between two checks of the frontier.
TIMEOUT, INTERVAL = 300.0, 0.05


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
