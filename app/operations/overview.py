"""The overview: what every part of the system does now, gathered so that a service that is away delays no page."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Generic, TypeVar

from redis import RedisError

from app.broker.errors import ApplicationError, error_text
from app.cluster.protocol import Routes
from app.crawl.frontier.values import Progress
from app.crawl.frontier.view import CrawlView
from app.crawl.record.crawls import latest_crawl
from app.crawl.record.keys import CRAWLS_PREFIX
from app.messages.dead_sets import dead_sets
from app.operations.doctor.breaker_states import BreakerState, breaker_states
from app.operations.doctor.check import CheckResult
from app.operations.doctor.checks import run_checks
from app.operations.queues import Growth, QueueReport, read_queues
from app.operations.workers import WorkersReport, read_workers
from app.pack.manifest import readable_manifest
from app.processes.process_states import ProcessState, current_states
from app.redis_state.client import get_quick_redis
from app.sites.status import lacks_pack
from app.storage.marker import read_marker
from app.storage.open import store_of
from app.timers.timers import RunningTimer, TickWatch, Timers
from config.settings import Settings

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartReading(Generic[T]):
    """The last value of a part, and the seconds since it was gathered. `trouble` says why it is missing now."""

    value: T | None = None
    trouble: str = ""
    age: float = 0.0

    def required(self, error: type[ApplicationError]) -> T:
        """Return the value; raises `error` with the trouble where it is missing."""
        if self.value is None:
            raise error(self.trouble)
        return self.value


class Part(Generic[T]):
    """A value that is gathered at most once in `every` seconds, and only when it is read.

    `gather` runs in a thread. Its errors of services become the `trouble` of the reading.
    """

    def __init__(self, name: str, gather: Callable[[], T], *, every: float) -> None:
        self._name, self._gather, self._every = name, gather, every
        self._changed = threading.Condition()
        self._is_gathering = self._is_outdated = False
        self._began = 0.0
        self._gathered: tuple[float, PartReading[T]] | None = None

    def start(self) -> None:
        """Begin to gather, if the value is too old, and do not wait."""
        with self._changed:
            is_new = self._gathered is not None and time.monotonic() - self._gathered[0] < self._every
            if self._is_gathering or is_new:
                return
            self._is_gathering, self._began = True, time.monotonic()
        threading.Thread(target=self._run, name=f"overview-{self._name}", daemon=True).start()

    def read(self, until: float, *, fresh: bool = True) -> PartReading[T]:
        """Return the value, after waiting for it at most `until`, in monotonic seconds.

        Without `fresh` a former value is returned at once, however old it is.
        """
        self.start()
        with self._changed:
            while self._is_gathering and (fresh or self._gathered is None):
                left = until - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            now = time.monotonic()
            if fresh and self._is_gathering and now - self._began > self._every:
                return PartReading(trouble=f"no answer for {now - self._began:.0f} s")
            if self._gathered is None:
                return PartReading(trouble="no answer yet")
            at, reading = self._gathered
            return PartReading(reading.value, reading.trouble, now - at)

    def forget(self) -> None:
        """Let the next reading gather the value again, such as after an act."""
        with self._changed:
            # What is being gathered now may have been read before the act.
            self._gathered, self._is_outdated = None, self._is_gathering

    def _run(self) -> None:
        while True:
            try:
                reading = PartReading(self._gather())
            except (ApplicationError, RedisError, OSError) as error:
                reading = PartReading(trouble=error_text(error))
            except Exception as error:
                # A page that waits for this thread shows it, as any other finding.
                logger.exception("The part %s of the overview cannot be gathered", self._name)
                reading = PartReading(trouble=f"{type(error).__name__}; the log of the web process has the details")
            with self._changed:
                if not self._is_outdated:
                    self._gathered = (time.monotonic(), reading)
                    self._is_gathering = False
                    self._changed.notify_all()
                    return
                self._is_outdated = False


#: Seconds that a page waits for all parts together.
PATIENCE: Final = 2.0
#: Seconds for which the parts are kept.
_QUICK, _STORE, _CHECKS, _SLOW = 2.0, 10.0, 60.0, 300.0
#: Crawls and timers that are read, domains whose packs are compared, and dead letters whose times are read.
_MAX_CRAWLS, _MAX_TIMERS, _MAX_DOMAINS, _MAX_LETTERS = 20, 100, 500, 2_000
_HOURS: Final = 24
#: Parts that take longer than a page waits.
_SLOWLY_READ: Final = frozenset({"packs", "dead", "checks"})
#: Seconds without a heartbeat after which a worker counts as killed, and after which its file says nothing any more.
_SILENT, _FORGOTTEN = 30.0, 3_600.0


@dataclass(frozen=True, slots=True)
class RedisReport:
    """What Redis says: crawls that are under way by domain, timers that are due first, and why no site is packed."""

    crawls: Sequence[tuple[str, Progress]]
    more_crawls: int
    timers: Sequence[tuple[str, RunningTimer]]
    timer_count: int
    packing_trouble: str


@dataclass(frozen=True, slots=True)
class WorkerFile:
    """The file that a worker of this machine touches every two seconds; `age` is the seconds since then."""

    name: str
    age: float

    @property
    def is_silent(self) -> bool:
        """Whether the worker was probably killed, or hangs."""
        return self.age > _SILENT


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of `perennial up`, where it runs here, and the workers that share this data folder."""

    states: Sequence[ProcessState]
    workers: Sequence[WorkerFile]


@dataclass(frozen=True, slots=True)
class DeadHistory:
    """How many letters died in each of the last 24 hours, the latest last. `counts` is empty if they are too many.

    `total` has the letters of shards, too, which the broker's figures lack without the management API.
    """

    total: int
    counts: Sequence[int]
    oldest: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The readings of all parts at one time."""

    queues: PartReading[QueueReport]
    redis: PartReading[RedisReport]
    routes: PartReading[Routes]
    store: PartReading[str]
    packs: PartReading[Sequence[str]]
    dead: PartReading[DeadHistory]
    processes: PartReading[Processes]
    breakers: PartReading[Sequence[BreakerState]]
    checks: PartReading[Sequence[CheckResult]]

    @property
    def dead_letters(self) -> int | None:
        """The number of dead letters, None if it is unknown. AMQP's figures alone lack those of shards."""
        queues, dead = self.queues.value, self.dead.value
        if queues is None:
            return None
        return max(queues.total("dead"), dead.total if queues.trouble and dead else 0)


class Overview:
    """Gathers the parts for all pages of one web process, only while they are read. `routes` asks the orchestrator."""

    def __init__(self, settings: Settings, *, routes: Callable[[], Routes]) -> None:
        self._settings = settings
        self._growth = Growth()
        self._ticks: TickWatch | None = None
        self.queues = Part("queues", lambda: self._growth.compared(read_queues(settings)), every=_QUICK)
        self.redis = Part("redis", self._read_redis, every=_QUICK)
        self.routes = Part("routes", routes, every=_QUICK)
        self.store = Part("store", lambda: read_marker(store_of(settings)), every=_STORE)
        self.packs = Part("packs", self._domains_without_pack, every=_SLOW)
        self.dead = Part("dead", self._read_deaths, every=_CHECKS)
        self.processes = Part("processes", self._read_processes, every=_QUICK)
        self.workers = Part("workers", self._read_workers, every=_QUICK)
        self.breakers = Part("breakers", lambda: breaker_states(settings), every=_QUICK)
        self.checks = Part("checks", lambda: list(run_checks(settings)), every=_CHECKS)

    def read(self, *, patience: float = PATIENCE) -> Snapshot:
        """Return all parts, after at most `patience` seconds. Of those that take longer, the last values are taken."""
        until = time.monotonic() + patience
        parts: dict[str, Part[Any]] = {each.name: getattr(self, each.name) for each in fields(Snapshot)}
        for part in parts.values():
            part.start()
        return Snapshot(**{name: part.read(until, fresh=name not in _SLOWLY_READ) for name, part in parts.items()})

    def _read_redis(self) -> RedisReport:
        redis = get_quick_redis(self._settings.redis)
        view, timers = CrawlView(redis), Timers(redis)
        if self._ticks is None:
            self._ticks = TickWatch(redis)
        domains = view.active_domains()
        return RedisReport(
            crawls=[(domain, view.progress(domain)) for domain in domains[:_MAX_CRAWLS]],
            more_crawls=max(0, len(domains) - _MAX_CRAWLS),
            timers=timers.first(_MAX_TIMERS),
            timer_count=timers.count(),
            packing_trouble="no tick ran for a minute, so no site is packed" if self._ticks.is_overdue() else "",
        )

    def _domains_without_pack(self) -> Sequence[str]:
        """Return the domains whose latest crawl ended, and has no pack, while no timer and no message will make one.

        A message may wait for a retry all the same: such a pack is late, too.
        """
        store, timers = store_of(self._settings), Timers(get_quick_redis(self._settings.redis))
        late = []
        for domain in sorted(store.list_folders(CRAWLS_PREFIX))[:_MAX_DOMAINS]:
            crawl = latest_crawl(store, domain)
            if crawl is None or crawl.state != "done" or timers.running(domain):
                continue
            if lacks_pack(crawl, readable_manifest(store, domain)):
                late.append(domain)
        return late

    def _read_deaths(self) -> DeadHistory:
        """Read the times of the dead letters. Dead sets are classic queues: this changes nothing."""
        now = time.time()
        oldest, hours = None, Counter[int]()
        sets = dead_sets(self._settings)
        total = sets.depth()
        if total > _MAX_LETTERS:
            return DeadHistory(total, (), None)
        for letter in sets.iter_summaries():
            at = letter.failed_at
            if at is not None:
                oldest = at if oldest is None else min(oldest, at)
                # The clock of a worker may be ahead of this one.
                hours[int(max(0.0, now - at) // 3_600)] += 1
        return DeadHistory(total, [hours[_HOURS - 1 - hour] for hour in range(_HOURS)], oldest)

    def _read_processes(self) -> Processes:
        folder, now = self._settings.heartbeat_dir, time.time()
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        workers = [WorkerFile(file.name, max(0.0, now - file.stat().st_mtime)) for file in files]
        recent = [worker for worker in workers if worker.age < _FORGOTTEN]
        return Processes(current_states(self._settings.data_dir), recent)

    def _read_workers(self) -> WorkersReport:
        until = time.monotonic() + PATIENCE
        queues, processes = self.queues.read(until).value, self.processes.read(until).value
        fresh = [each.name for each in processes.workers if not each.is_silent] if processes else []
        return read_workers(self._settings, queues, fresh)


def as_json(snapshot: Snapshot) -> Mapping[str, object]:
    """Return the figures of a snapshot for programs; None for unknown ones."""
    queues, redis, routes = snapshot.queues.value, snapshot.redis.value, snapshot.routes.value
    return {
        "ready": {**{kind: queues.total(kind) for kind in ("work", "delay")}, "dead": snapshot.dead_letters}
        if queues
        else None,
        "crawls": len(redis.crawls) + redis.more_crawls if redis else None,
        "timers": redis.timer_count if redis else None,
        "searchers": len(routes.searchers) if routes else None,
        "packs": len(routes.routes) if routes else None,
        "dead_by_hour": list(snapshot.dead.value.counts) if snapshot.dead.value else None,
        "checked_seconds_ago": round(snapshot.checks.age, 1) if snapshot.checks.value is not None else None,
    }
