"""The system that is measured: private RabbitMQ and Redis, and the Procfile's processes with an empty store."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kombu import Connection
from pydantic import SecretStr
from redis import Redis

from app import private_services as services
from app.broker.publishing import Publisher
from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.values import ACTIVE_CRAWLS, Progress
from app.crawl.record.keys import plain_id
from app.http.api_client import ApiClient
from app.machine import tail, wait_until
from app.messages.envelopes import site_message
from app.processes.procfile import procfile
from app.redis_state.client import get_redis
from app.storage.open import create_store
from app.topology.declare import client_queues
from benchmarks.errors import BenchmarkError
from benchmarks.processes import running
from benchmarks.usage import Usage, usage
from config.settings import Settings

#: The processes of a crawl, and what the log of each contains when it is ready.
PROCESSES = {"worker": " ready.", "packer": " ready.", "beat": "LocalTime"}
#: The processes of a site from its crawl to its searches.
WITH_SEARCH = {**PROCESSES, "orchestrator": " ready.", "searcher": " ready."}
#: Titles of the groups of processes whose CPU time tables show.
GROUPS = {
    "worker: parent": ("worker",),
    "worker: pool": ("worker children",),
    "packer": ("packer", "packer children"),
    "beat": ("beat", "beat children"),
    "RabbitMQ": ("RabbitMQ", "RabbitMQ children"),
    "Redis": ("Redis", "Redis children"),
}
#: The same with those of the search cluster.
ALL_GROUPS = {**GROUPS, "orchestrator": ("orchestrator",), "searcher": ("searcher", "searcher children")}
#: Seconds after which the broker has emitted the statistics of what happened before.
STATISTICS_LAG = 6.0


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
        rabbitmq, redis = (int(service.pid or 0) for service in services.status(settings))
        yield BenchSystem(settings, {"RabbitMQ": rabbitmq, "Redis": redis}, folder)
    finally:
        services.down(settings)


def environment(settings: Settings, home: Path, values: Mapping[str, object]) -> dict[str, str]:
    """Return the environment of a crawl's processes: no delay, private hosts allowed, a store below `home`."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PERENNIAL_DATA_DIR": str(settings.data_dir),
        "STORE_URL": f"file://{home / 'store'}",
        "HOST_DELAY": "0",
        "ALLOW_PRIVATE_HOSTS": "127.0.0.0/8",
        **{name: str(value) for name, value in values.items()},
    }


def empty_redis_and_queues(settings: Settings) -> None:
    """Empty Redis and every queue, so that each run is a first crawl."""
    redis: Redis = get_redis(settings.redis)
    redis.flushall()
    with Connection(settings.broker) as connection, connection.channel() as channel:
        for queue in client_queues(settings):
            bound = queue(channel)
            bound.declare()
            bound.purge()


@dataclass(frozen=True, slots=True)
class RunningCrawler:
    """The processes of a crawl while they run, and what they have done so far."""

    system: BenchSystem
    home: Path
    pids: Mapping[str, int]
    redis: Redis
    frontier: Frontier

    def post(self, *urls: str) -> None:
        """Begin a crawl at each start page."""
        messages = [site_message("index+crawl", url=url, crawl_id=secrets.token_hex(8)) for url in urls]
        with closing(Publisher(self.system.settings.broker)) as publisher:
            publisher.publish(messages)

    def progress(self, domain: str) -> Progress:
        """Return the counts of a domain's crawl."""
        return self.frontier.progress(domain)

    def usage(self) -> Usage:
        """Return the CPU time of the processes, of the services, and of this process with its sites as `own`."""
        return usage({**self.pids, **self.system.pids})

    def redis_calls(self) -> dict[str, int]:
        """Return the calls of each Redis command since its statistics were reset, including those in scripts."""
        stats = self.redis.info("commandstats")
        return {name.removeprefix("cmdstat_"): int(counters["calls"]) for name, counters in stats.items()}

    def wait(self, condition: Callable[[], bool], seconds: float, description: str, *, every: float = 0.02) -> None:
        """Wait until the condition is true; raises BenchmarkError after `seconds`."""
        if not wait_until(condition, seconds, every=every):
            end_of_log = f"the worker's log ends with:\n{tail(self.home / 'worker.log', 30)}"
            raise BenchmarkError(f"not within {seconds:g} s: {description}; {end_of_log}")

    def wait_for_end(self, domain: str, pages: int, seconds: float) -> None:
        """Wait until the crawl of a domain has ended with this number of indexed pages and no dead letter.

        Raises BenchmarkError if it has not.
        """
        self.wait(lambda: has_ended(self.progress(domain)), seconds, f"the crawl of {domain} has ended")
        progress = self.progress(domain)
        if progress.dead or progress.indexed != pages:
            raise BenchmarkError(f"{domain}: expected {pages} indexed pages and no dead letter: {progress}")

    def wait_for_record(self, domain: str) -> None:
        """Wait until the record of a domain's crawl is complete in the store, and no longer in Redis."""
        crawl = self.frontier.latest(domain)
        if crawl is not None:
            name = plain_id(crawl.id)
            self.wait(lambda: not self.redis.sismember(ACTIVE_CRAWLS, name), 30, f"the record of {domain} is complete")

    def cancel(self, domain: str) -> None:
        """Cancel the crawl of a domain in the frontier: nothing more of it is fetched."""
        if crawl := self.frontier.latest(domain):
            self.frontier.set_state(crawl.id, "cancelled")


def has_ended(progress: Progress) -> bool:
    """Return whether a crawl has ended. For a moment only the start page is seen, and no message is open yet."""
    return progress.open == progress.waiting == 0 and progress.seen > 1


@contextmanager
def running_crawler(
    system: BenchSystem, processes: Mapping[str, str] = PROCESSES, /, **settings: object
) -> Iterator[RunningCrawler]:
    """Run processes of the Procfile during the block, with an empty store, empty queues and an empty Redis.

    `processes` has what the log of each contains when it is ready. `settings` are environment variables. By default no
    pack is built meanwhile: timers are longer than a measurement.
    """
    with TemporaryDirectory(prefix="crawl-", dir=system.folder) as name, ExitStack() as stack:
        home = Path(name)
        empty_redis_and_queues(system.settings)
        variables = environment(system.settings, home, {"TIMER_TIMEOUT": 3_600, **settings})
        create_store(variables["STORE_URL"])
        pids = {}
        for process, ready in processes.items():
            log = home / f"{process}.log"
            pids[process] = stack.enter_context(running(procfile()[process], variables, log, ready=ready)).pid
        redis: Redis = get_redis(system.settings.redis)
        yield RunningCrawler(system, home, pids, redis, Frontier(redis))


@dataclass(frozen=True, slots=True)
class PageCounts:
    """Counts of the broker since it started: deliveries of `page` messages, and their hops through delay queues."""

    deliveries: int
    hops: int

    def __sub__(self, before: PageCounts) -> PageCounts:
        return PageCounts(self.deliveries - before.deliveries, self.hops - before.hops)


def page_counts(settings: Settings, *, queue: str, namespace: str) -> PageCounts:
    """Return the counts of the management API, which are up to STATISTICS_LAG seconds old."""
    columns = "columns=name,message_stats.deliver_get,message_stats.publish"
    queues = ApiClient().send("GET", f"{settings.broker_api.rstrip('/')}/queues/%2F?{columns}").json()
    stats = {each["name"]: each.get("message_stats", {}) for each in queues}
    delayed = [counts for name, counts in stats.items() if name.startswith(f"{namespace}.delay.")]
    return PageCounts(
        deliveries=int(stats.get(queue, {}).get("deliver_get", 0)),
        hops=sum(int(counts.get("publish", 0)) for counts in delayed),
    )


def cpu_ms(spent: Mapping[str, float], pages: int) -> dict[str, float]:
    """Return the CPU milliseconds a page of each group of processes that was measured, by its title."""
    return {
        title: 1_000 * sum(spent[name] for name in names) / pages
        for title, names in ALL_GROUPS.items()
        if names[0] in spent
    }


def cpu_rows(unit: str, runs: Sequence[Mapping[str, float]]) -> dict[str, list[str]]:
    """Return the rows of a table with the CPU ms of each group of processes, and of all, for each run."""
    groups = {f"CPU ms {unit}, {group}": [f"{cpu[group]:.2f}" for cpu in runs] for group in runs[0]}
    return {**groups, f"CPU ms {unit}, all": [f"{sum(cpu.values()):.2f}" for cpu in runs]}
