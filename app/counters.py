"""Counters of workers and searchers: added in memory, written to a Redis hash that the web process exports."""

from __future__ import annotations

import json
import logging
import os
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from redis import Redis, RedisError

from app.redis_state.client import PREFIX, get_quick_redis, open_redis

#: The hash. A field is a JSON array of a counter's name and its label values.
COUNTS: Final = f"{PREFIX}counts"
#: Seconds between two writes of one process, which are what a killed process loses at most.
_EVERY: Final = 1.0
#: Seconds for which Redis remembers the last write of a process, so that a repeated one does not count twice.
_REMEMBERED: Final = 3_600
#: Adds ARGV[4] to field ARGV[3] and so on, unless the process (KEYS[2]) has written its write ARGV[1] before.
_ADD: Final = """
if redis.call('GET', KEYS[2]) == ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[1], 'EX', ARGV[2])
for i = 3, #ARGV, 2 do redis.call('HINCRBYFLOAT', KEYS[1], ARGV[i], ARGV[i + 1]) end
return 1
"""
_STATUSES: Final = frozenset(map(int, HTTPStatus))

_log = logging.getLogger(__name__)

#: The values of a counter's labels.
LabelValues = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerCounter:
    """A counter over all processes. Label values come from the code, never from messages or sites: they are few."""

    name: str
    text: str
    labels: tuple[str, ...] = ()

    def add(self, *values: str, amount: float = 1.0) -> None:
        """Add to the counter with these label values; does nothing in a process that does not count."""
        if table := _current:
            table.add(self.name, values, amount)


TASK_RUNS: Final = WorkerCounter("perennial_task_runs", "Runs of tasks.", ("task", "queue", "outcome", "reason"))
CRAWLED_URLS: Final = WorkerCounter("perennial_crawled_urls", "URLs that crawls completed.", ("state", "reason"))
CRAWL_REQUESTS: Final = WorkerCounter("perennial_crawl_requests", "Requests to sites.", ("result",))
CRAWL_SECONDS: Final = WorkerCounter("perennial_crawl_request_seconds", "Seconds of requests to sites.")
CRAWL_BYTES: Final = WorkerCounter("perennial_crawl_bytes", "Bytes of response bodies.")
ROBOTS_REQUESTS: Final = WorkerCounter("perennial_robots_requests", "Requests for robots.txt.", ("result",))
HOST_WAIT_SECONDS: Final = WorkerCounter("perennial_host_wait_seconds", "Seconds that runs wait for a host.")
PACKS_BUILT: Final = WorkerCounter("perennial_packs_built", "Packs that were written.", ("kind",))
PACK_SECONDS: Final = WorkerCounter("perennial_pack_build_seconds", "Seconds of building them.", ("kind",))
PACK_BYTES: Final = WorkerCounter("perennial_pack_built_bytes", "Bytes of their frames.", ("kind",))
CONFIRM_WAITS: Final = WorkerCounter("perennial_confirm_waits", "Waits for confirms, each of one or more messages.")
CONFIRM_SECONDS: Final = WorkerCounter("perennial_confirm_wait_seconds", "Seconds of these waits.")
ART_JOBS: Final = WorkerCounter("perennial_art_jobs", "Runs of cover art jobs.", ("kind", "outcome"))
ARCHIVE_ANSWERS: Final = WorkerCounter("perennial_archive_answers", "Responses of the archive.", ("method", "status"))
SEARCHER_QUERIES: Final = WorkerCounter("perennial_searcher_queries", "Queries to searchers.", ("kind", "outcome"))
SEARCHER_SECONDS: Final = WorkerCounter("perennial_searcher_query_seconds", "Seconds of these queries.", ("kind",))

COUNTERS: Final = (
    *(TASK_RUNS, CRAWLED_URLS, CRAWL_REQUESTS, CRAWL_SECONDS, CRAWL_BYTES, ROBOTS_REQUESTS, HOST_WAIT_SECONDS),
    *(PACKS_BUILT, PACK_SECONDS, PACK_BYTES, CONFIRM_WAITS, CONFIRM_SECONDS, ART_JOBS, ARCHIVE_ANSWERS),
    *(SEARCHER_QUERIES, SEARCHER_SECONDS),
)


def status_label(status: int) -> str:
    """Return an HTTP status as a label value: a server may invent any number."""
    return str(status) if status in _STATUSES else "other"


class CountTable:
    """The counts of one process. A thread writes them, so that no work waits for Redis.

    A write that fails is repeated unchanged until Redis answers it, and counts once: it has a number. What was added
    meanwhile follows in the next one.
    """

    def __init__(self, redis: Redis) -> None:
        """Start no thread yet: `redis` is of this process alone, and fails soon."""
        self.pid = os.getpid()
        self._key = f"{COUNTS}:{uuid.uuid4().hex}"
        self._script = redis.register_script(_ADD)
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._added: dict[tuple[str, LabelValues], float] = {}
        self._unwritten: dict[tuple[str, LabelValues], float] = {}
        self._number = 0
        self._has_counts, self._is_closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, name: str, values: LabelValues, amount: float) -> None:
        """Add to a counter. The first call starts the thread."""
        with self._lock:
            key = name, values
            self._added[key] = self._added.get(key, 0.0) + amount
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="counts", daemon=True)
                with suppress(RuntimeError):  # The system gives no thread now: the next call tries again.
                    thread.start()
                    self._thread = thread
        if not self._has_counts.is_set():
            self._has_counts.set()

    def flush(self) -> bool:
        """Write what was added; return whether nothing is left of it. Logs an error of Redis, and keeps the counts."""
        with self._write_lock:
            # An earlier write that failed comes first, and then what was added since.
            while self._unwritten or self._take():
                pairs = list[str]()
                for (name, values), amount in self._unwritten.items():
                    pairs += (json.dumps([name, *values], separators=(",", ":")), repr(amount))
                try:
                    self._script(keys=[COUNTS, self._key], args=[self._number, _REMEMBERED, *pairs])
                except (RedisError, OSError) as error:
                    _log.debug("Counts not written, again in %g s: %s", _EVERY, error)
                    return False
                self._unwritten = {}
            return True

    def close(self) -> None:
        """Write once more, at the end of the process."""
        self._is_closed.set()
        self.flush()

    def _take(self) -> bool:
        with self._lock:
            self._unwritten, self._added = self._added, {}
        self._number += 1
        return bool(self._unwritten)

    def _run(self) -> None:
        while self._has_counts.wait() and not self._is_closed.wait(_EVERY):
            self._has_counts.clear()
            if not self.flush():
                self._has_counts.set()


#: None in a process that does not count. A forked child has that of its parent until its own `begin`.
_current: CountTable | None = None


def begin(url: str) -> None:
    """Count in this process from now on, and write to the Redis of this URL."""
    global _current
    if _current is None or _current.pid != os.getpid():
        # A client of its own: a thread of the parent may have held the locks of a shared one at the fork.
        _current = CountTable(open_redis(url, socket_timeout=1, socket_connect_timeout=1, retry=None))


def end() -> None:
    """Write the counts of this process, at its end."""
    if _current is not None and _current.pid == os.getpid():
        _current.close()


def read_counts(url: str) -> Mapping[WorkerCounter, Mapping[LabelValues, float]]:
    """Return all counts of all workers; those of other releases are left out. Raises RedisError."""
    by_name = {counter.name: counter for counter in COUNTERS}
    counts: dict[WorkerCounter, dict[LabelValues, float]] = {counter: {} for counter in COUNTERS}
    for field, amount in get_quick_redis(url).hgetall(COUNTS).items():
        name, *values = json.loads(field)
        counter = by_name.get(name)
        if counter and len(values) == len(counter.labels):
            counts[counter][tuple(values)] = float(amount)
    for counter, found in counts.items():
        if not counter.labels:
            found.setdefault((), 0.0)
    return counts
