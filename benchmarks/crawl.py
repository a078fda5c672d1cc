"""Crawl a real site with the whole system: private RabbitMQ and Redis, and the Procfile's worker."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from kombu import Connection
from pydantic import SecretStr
from redis import Redis

from app import services
from app.broker.publishing import Publisher
from app.crawl.frontier import Frontier
from app.crawl.frontier_values import Progress
from app.envelopes import site_message
from app.services import state
from app.services.procfile import procfile
from app.services.service import tail, wait_until
from app.state.client import get_redis
from app.storage.folder import FolderStore
from app.storage.layout import Page, content_prefix, from_json
from app.storage.open import create_store
from app.topology.declare import client_queues
from benchmarks.errors import BenchmarkError
from benchmarks.processes import running
from benchmarks.runs import CrawlRun
from benchmarks.sites import ServedSites
from benchmarks.usage import usage
from config.settings import Settings

#: Seconds after which a crawl counts as failed, and between two checks of the frontier.
TIMEOUT, INTERVAL = 300.0, 0.05


@dataclass(frozen=True, slots=True)
class BenchSystem:
    """The private services of one benchmark, whose data is deleted after each run."""

    settings: Settings
    pids: Mapping[str, int]
    folder: Path


@contextmanager
def start_system(folder: Path) -> Iterator[BenchSystem]:
    """Run RabbitMQ and Redis during the block, with their data below `folder`."""
    settings = Settings(data_dir=folder, broker_url=SecretStr(""), redis_url=SecretStr(""), store_url="")
    # Delete queues and data of an earlier run that was interrupted.
    services.down(settings)
    shutil.rmtree(settings.services_file.parent, ignore_errors=True)
    services.up(settings)
    try:
        pids = state.load(settings.services_file.parent).pids
        yield BenchSystem(settings, {"RabbitMQ": pids["RabbitMQ"], "Redis": pids["Redis"]}, folder)
    finally:
        services.down(settings)


def crawl(
    site: str, served: ServedSites, system: BenchSystem, *, concurrency: int, profile: Path | None = None
) -> CrawlRun:
    """Crawl a served site with a new worker, empty store and empty Redis. `cpu` excludes the web server.

    With `profile`, py-spy samples the worker and writes its stacks to that file, which slows the crawl.
    """
    domain = urlsplit(served.urls[site]).netloc
    with TemporaryDirectory(prefix="crawl-", dir=system.folder) as name:
        home = Path(name)
        _empty_redis_and_queues(system.settings)
        environment = _environment(system.settings, home, concurrency)
        create_store(environment["STORE_URL"])
        with running(procfile()["worker"], environment, home / "worker.log") as worker:
            groups = {"worker": worker.pid, **system.pids, "nginx": served.pid}
            with _profiled(worker.pid, profile):
                get_redis(system.settings.redis).config_resetstat()
                before, began = usage(groups), time.perf_counter()
                _post(system.settings, served.urls[site])
                progress = _finished(system.settings, domain, worker, home / "worker.log")
                wall, after = time.perf_counter() - began, usage(groups)
                commands = _commands(system.settings)
        pages = _stored(home / "store", domain)
    _check(progress, pages, site)
    spent = dict(after.since(before))
    nginx = spent.pop("nginx") + spent.pop("nginx children")
    return CrawlRun(
        site=site,
        contestant=f"Perennial -c {concurrency}",
        pages=pages,
        wall=wall,
        cpu=spent,
        apart={"nginx": nginx},
        others=after.others(before, ours=sum(spent.values()) + nginx),
        redis_commands=commands,
    )


def _environment(settings: Settings, home: Path, concurrency: int) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PERENNIAL_DATA_DIR": str(settings.data_dir),
        "STORE_URL": f"file://{home / 'store'}",
        "HOST_DELAY": "0",
        "ALLOW_PRIVATE_HOSTS": "127.0.0.0/8",
        "WORKER_CONCURRENCY": str(concurrency),
    }


def _empty_redis_and_queues(settings: Settings) -> None:
    """Empty Redis and every queue, so that each run is a first crawl."""
    redis: Redis = get_redis(settings.redis)
    redis.flushall()
    with Connection(settings.broker) as connection, connection.channel() as channel:
        for queue in client_queues(settings):
            bound = queue(channel)
            bound.declare()
            bound.purge()


def _post(settings: Settings, url: str) -> None:
    publisher = Publisher(settings.broker)
    publisher.publish([site_message("index+crawl", url=url, crawl_id=secrets.token_hex(8))])
    publisher.close()


def _finished(settings: Settings, domain: str, worker: subprocess.Popen[bytes], log: Path) -> Progress:
    """Wait until the crawl has no open message. Return its progress."""
    frontier = Frontier(get_redis(settings.redis), ttl=settings.crawl_ttl)
    # For a moment only the start page is seen, and no message is open yet.
    ended = wait_until(
        lambda: worker.poll() is not None or ((now := frontier.progress(domain)).open == 0 and now.seen > 1),
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
