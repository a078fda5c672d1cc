"""A searcher: what answers the queue that `--queues=site.searcher` gives a worker of its own."""

from __future__ import annotations

import resource
from functools import partial
from pathlib import Path
from typing import Any

from app.broker.publishing import Publisher
from app.broker.rpc.responder import Responder
from app.cluster.protocol import Holding, Load, size_mb
from app.cluster.searcher.loader import Fetch, Loader
from app.cluster.searcher.packs import Packs
from app.cluster.searcher.reporter import Post, Reporter
from app.cluster.searcher.service import BACKLOG, STUCK_LIMITS, STUCK_SECONDS, SearcherService, Searching, problem
from app.cluster.searcher.slot import Slot
from app.pack import database
from app.pack.fetch import fetch_version
from app.serving import Service, serves
from app.storage.open import open_store
from app.storage.store import ObjectStore
from config.routes import SEARCHER
from config.settings import Settings, get_settings

#: Files that may be open, where the system allows: thousands of packs.
_FILES = 65_536


@serves(SEARCHER)
def searcher(consumer: Any) -> Service:
    """Make the service of a worker's searcher; raises PackError where it can have no folder."""
    settings = get_settings()
    _allow_files()
    slot = Slot.take(settings.searcher_dir or settings.data_dir / "searchers")
    packs = Packs(remove=slot.remove, time_limit=settings.search_time_limit)
    store = open_store(settings.store, endpoint_url=settings.s3_endpoint_url)
    loader = Loader(
        slot=slot, packs=packs, budget_mb=settings.searcher_disk_mb, fetch=fetch_from(store), check=database.check
    )
    patience = max(STUCK_SECONDS, STUCK_LIMITS * settings.search_time_limit)
    searching = Searching(packs, doubt=loader.submit, threads=settings.searcher_threads, patience=patience)
    return SearcherService(
        packs=packs,
        loader=loader,
        searching=searching,
        responder=_responder(settings),
        reporter=_reporter(consumer, loader, searching, settings),
        linger=consumer.linger,
    )


def _allow_files() -> None:
    """Open as many files as this process may: each pack is one for each thread that searched it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def _responder(settings: Settings) -> Responder:
    """Return what has queries answered: the service gives each its work, so that it knows no types by itself."""
    threads = settings.searcher_threads
    return Responder(settings.broker, {}, problem=problem, threads=threads, backlog=BACKLOG * threads)


def _reporter(consumer: Any, loader: Loader, searching: Searching, settings: Settings) -> Reporter:
    def unwell() -> str:
        if consumer.connection is None or not consumer.connection.connected:
            return "the broker is away, and its queue with it"
        return "every thread is stuck in a query" if searching.is_stuck() else ""

    post = Post(
        events=Publisher(settings.broker, timeout=settings.publish_timeout),
        heartbeats=Publisher(settings.broker, timeout=min(settings.heartbeat, settings.publish_timeout)),
    )
    state = partial(loader.report, consumer.searcher_id)
    return Reporter(post, every=settings.heartbeat, state=state, unwell=unwell)


def fetch_from(store: ObjectStore) -> Fetch:
    """Return what fetches packs from a store.

    Where a newer version than the one asked for has taken its place, that is what is loaded, and what `loaded` names:
    the orchestrator is spared a load that would be of no use a moment later.
    """

    def fetch(load: Load, target: Path, *, room: int) -> Holding:
        found = fetch_version(store, load.domain, target, at_least=load.generation, room=room)
        size = size_mb(target.stat().st_size)
        return Holding(domain=load.domain, sha256=found.sha256, generation=found.generation, size_mb=size)

    return fetch
