"""Crawl a real site with the whole system: private RabbitMQ and Redis, and the Procfile's worker."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.values import Progress
from app.private_services.procfile import procfile
from app.private_services.service import tail, wait_until
from app.redis_state.client import get_redis
from app.storage.folder import FolderStore
from app.storage.layout import Page, content_prefix, from_json
from app.storage.open import create_store
from benchmarks.errors import BenchmarkError
from benchmarks.processes import running
from benchmarks.runs import CrawlRun
from benchmarks.sites import ServedSites
from benchmarks.system import BenchSystem, empty_redis_and_queues, environment, has_ended, post_crawl
from benchmarks.usage import usage
from config.settings import Settings

#: Seconds after which a crawl counts as failed, and between two checks of the frontier.
TIMEOUT, INTERVAL = 300.0, 0.05


def crawl(
    site: str, served: ServedSites, system: BenchSystem, *, concurrency: int, profile: Path | None = None
) -> CrawlRun:
    """Crawl a served site with a new worker, empty store and empty Redis. `cpu` excludes the web server.

    With `profile`, py-spy samples the worker and writes its stacks to that file, which slows the crawl.
    """
    domain = urlsplit(served.urls[site]).netloc
    with TemporaryDirectory(prefix="crawl-", dir=system.folder) as name:
        home = Path(name)
        empty_redis_and_queues(system.settings)
        variables = environment(system.settings, home, {"WORKER_CONCURRENCY": concurrency})
        create_store(variables["STORE_URL"])
        with running(procfile()["worker"], variables, home / "worker.log") as worker:
            groups = {"worker": worker.pid, **system.pids, "nginx": served.pid}
            with _profiled(worker.pid, profile):
                get_redis(system.settings.redis).config_resetstat()
                before, began = usage(groups), time.perf_counter()
                post_crawl(system.settings, served.urls[site])
                progress = _finished(system.settings, domain, worker, home / "worker.log")
                wall, spent = time.perf_counter() - began, usage(groups).since(before)
                commands = _commands(system.settings)
        pages = _stored(home / "store", domain)
    _check(progress, pages, site)
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


def _finished(settings: Settings, domain: str, worker: subprocess.Popen[bytes], log: Path) -> Progress:
    """Wait until the crawl has no open message. Return its progress."""
    frontier = Frontier(get_redis(settings.redis))
    ended = wait_until(
        lambda: worker.poll() is not None or has_ended(frontier.progress(domain)),
        TIMEOUT,
        every=INTERVAL,
    )
    progress = frontier.progress(domain)
    if not ended or worker.poll() is not None:
        raise BenchmarkError(
            f"the crawl of {domain} did not end: {progress}; the worker's log ends with:\n{tail(log, 30)}"
        )
    return progress


def _commands(settings: Settings) -> dict[str, int]:
    """Return the calls of each Redis command since its statistics were reset, including those in scripts."""
    stats = get_redis(settings.redis).info("commandstats")
    return {name.removeprefix("cmdstat_"): int(counters["calls"]) for name, counters in stats.items()}


def _stored(folder: Path, domain: str) -> frozenset[str]:
    """Return the canonical keys of the stored pages, without tombstones."""
    store = FolderStore(folder)
    contents = (from_json(store.get(stat.key).data) for stat in store.list(content_prefix(domain)))
    return frozenset(content.canonical_key for content in contents if isinstance(content, Page))


def _check(progress: Progress, pages: frozenset[str], site: str) -> None:
    if progress.dead or not pages:
        raise BenchmarkError(f"{site}: {len(pages)} pages stored, {progress.dead} dead letters: {progress}")


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
