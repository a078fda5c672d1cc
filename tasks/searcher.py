"""A searcher: what answers the queue that `--queues=site.searcher` gives a worker of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.amqp.publish import Publisher
from app.amqp.responder import Responder
from app.pack import database
from app.pack.read import fetch_version
from app.search.messages import Holding, Load, Report, size_mb
from app.search.node.loader import Fetch, Loader
from app.search.node.packs import Packs
from app.search.node.reporter import Post, Reporter
from app.search.node.service import BACKLOG, STUCK_LIMITS, STUCK_SECONDS, SearcherService, Searching, problem
from app.search.node.slot import Slot
from app.serving import Service, serves
from app.storage.open import open_store
from app.storage.store import ObjectStore
from config.routes import SEARCHER
from config.settings import Settings, get_settings


@serves(SEARCHER)
def searcher(consumer: Any) -> Service:
    """Make the service of a worker's searcher; raises PackError where it can have no folder."""

    def is_connected() -> bool:
        return consumer.connection is not None and consumer.connection.connected

    return build(consumer.searcher_id, get_settings(), linger=consumer.linger, is_connected=is_connected)


def build(
    searcher_id: str, settings: Settings, *, linger: Callable[[float], None], is_connected: Callable[[], bool]
) -> SearcherService:
    """Put a searcher together; `is_connected` tells whether its queue is there."""
    slot = Slot.take(settings.searcher_dir or settings.data_dir / "searchers")
    packs = Packs(remove=slot.remove, time_limit=settings.search_time_limit)
    loader = Loader(
        slot=slot,
        packs=packs,
        budget_mb=settings.searcher_disk_mb,
        fetch=fetch_from(open_store(settings.store, endpoint_url=settings.s3_endpoint_url)),
        check=database.check,
        tell=lambda change: reporter.tell(change),
    )
    searching = Searching(
        packs,
        doubt=loader.submit,
        threads=settings.searcher_threads,
        patience=max(STUCK_SECONDS, STUCK_LIMITS * settings.search_time_limit),
    )

    def state() -> Report:
        room = loader.room()
        return Report(
            searcher_id=searcher_id,
            seq=0,
            free_space=room.free,
            capacity=room.capacity,
            holdings=packs.holdings(),
            loading=loader.loading(),
        )

    def unwell() -> str:
        if not is_connected():
            return "the broker is away, and its queue with it"
        return "every thread is stuck in a query" if searching.is_stuck() else ""

    post = Post(
        events=Publisher(settings.broker, timeout=settings.publish_timeout),
        heartbeats=Publisher(settings.broker, timeout=min(settings.heartbeat, settings.publish_timeout)),
    )
    reporter = Reporter(post, every=settings.heartbeat, state=state, unwell=unwell)

    def release() -> None:
        packs.close()
        slot.close()

    return SearcherService(
        searching=searching,
        responder=Responder(
            settings.broker,
            {},
            problem=problem,
            threads=settings.searcher_threads,
            backlog=BACKLOG * settings.searcher_threads,
        ),
        loader=loader,
        reporter=reporter,
        linger=linger,
        release=release,
    )


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
