"""A searcher's process: build its parts, serve its queue, and drain when the process is to stop."""

from __future__ import annotations

import logging
import os
import resource
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from kombu import Queue

from app import counters
from app.broker.connection import BROKER_TIMEOUT
from app.broker.publishing import Publisher
from app.broker.rpc.queue_consumer import QueueConsumer
from app.broker.rpc.responder import Responder
from app.cluster.protocol import problem_reply, to_json
from app.cluster.searcher.data_directory import DataDirectory
from app.cluster.searcher.loader import Loader
from app.cluster.searcher.pack_jobs import PackJobs
from app.cluster.searcher.packs import OpenPacks
from app.cluster.searcher.query_pool import QueryPool
from app.cluster.searcher.reporter import Reporter
from app.cluster.searcher.service import BACKLOG, STUCK_SECONDS, TIME_LIMIT, QueryHandler, SearcherService
from app.cluster.searcher.settings_reader import SearchSettingsReader
from app.storage.open import store_of
from app.topology.check import server_version
from app.topology.declare import declare_all
from app.topology.queues import searcher_queue
from config.settings import Settings

log = logging.getLogger(__name__)

#: Files that may be open, as far as the system allows: each thread that searched a pack keeps its database open.
_OPEN_FILES: Final = 65_536
#: Seconds that a stopping searcher still answers: clients update their route cache every second.
DRAIN: Final = 1.5

#: The version of RabbitMQ since which it refuses transient queues that are not exclusive.
_NO_TRANSIENT_QUEUES: Final = (4, 3)


def run(settings: Settings, *, stopping: Callable[[], bool]) -> None:
    """Serve one searcher's queue until `stopping` returns true, then announce it, drain and return.

    Raises PackError if no data directory can be locked.
    """
    raise_open_file_limit()
    counters.begin(settings.redis)
    searcher_id = str(uuid.uuid4())
    # The reporter asks for the consumer's state only after the consumer has connected.
    service, reporter, search_settings = build(settings, searcher_id, is_connected=lambda: consumer.connected)
    search_settings.start()
    queue = searcher_queue(searcher_id)

    def connected() -> None:
        service.connected()
        log.info("Searcher %s ready.", searcher_id)

    consumer = QueueConsumer(
        settings.broker,
        queue,
        declare=partial(declare, settings, queue),
        on_delivery=service.take,
        on_connected=connected,
    )
    try:
        consumer.run(until=stopping)
        log.info("Searcher %s stops: it answers for %g s more", searcher_id, DRAIN)
        reporter.leave()
        drained_at = time.monotonic() + DRAIN
        consumer.run(until=lambda: time.monotonic() >= drained_at)
    finally:
        search_settings.close()
        consumer.close()
        service.close()
        counters.end()
    log.info("Searcher %s stopped", searcher_id)


def raise_open_file_limit() -> None:
    """Raise this process's limit of open files to `_OPEN_FILES`, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def declare(settings: Settings, queue: Queue, connection: Any) -> None:
    """Make a searcher's queue fit the broker's version, and declare the topology where the settings permit it."""
    queue.durable = server_version(connection) >= _NO_TRANSIENT_QUEUES
    if not settings.declare_topology:
        return
    # A worker that consumes from a refused queue declares it again; a searcher needs none of them.
    for refusal in declare_all(connection, settings):
        log.warning("Queue %s refused: %s", refusal.queue.name, refusal)


def build(
    settings: Settings, searcher_id: str, *, is_connected: Callable[[], bool]
) -> tuple[SearcherService, Reporter, SearchSettingsReader]:
    """Lock a data directory and return a searcher's service, reporter and reader of settings; raises PackError."""
    directory = DataDirectory.acquire(settings.data_dir / "searchers")
    # One more than cores: a slow query holds up no other.
    processes = settings.searcher_processes or len(os.sched_getaffinity(0)) + 1
    pool = QueryPool(processes, time_limit=TIME_LIMIT, patience=STUCK_SECONDS)

    def remove(path: Path) -> None:
        pool.close_pack(path)
        directory.remove(path)

    packs = OpenPacks(remove=remove, time_limit=TIME_LIMIT)
    store = store_of(settings)
    jobs = PackJobs(directory=directory, packs=packs, budget_mb=settings.searcher_disk_mb, store=store)
    loader = Loader(jobs)
    query_handler = QueryHandler(packs, pool, request_check=loader.submit)
    reporter = Reporter(
        events=Publisher(settings.broker),
        heartbeats=Publisher(settings.broker, timeout=min(settings.heartbeat, BROKER_TIMEOUT)),
        published=directory.touch,
        every=settings.heartbeat,
        report=partial(loader.report, searcher_id),
        registration=partial(loader.registration, searcher_id),
        silence_reason=lambda: "" if is_connected() else "the broker is unreachable",
    )
    service = SearcherService(
        packs=packs,
        pool=pool,
        loader=loader,
        query_handler=query_handler,
        responder=Responder(
            settings.broker,
            {},
            problem=lambda error: to_json(problem_reply(error, process="searcher")),
            threads=processes,
            backlog=BACKLOG * processes,
        ),
        reporter=reporter,
    )
    return service, reporter, SearchSettingsReader(store, packs, kept=directory.settings_store())
