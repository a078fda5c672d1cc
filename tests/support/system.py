"""The running system of a test: worker and beat as processes, and a foreign client's view of them."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.values import Progress
from app.errors import PackNotFound
from app.pack.manifest import Manifest, read_manifest
from app.redis_state.client import get_redis
from app.search.contract import Hit
from app.search.pack_searcher import PackSearcher
from app.search.query import parse
from app.storage.open import open_store
from config.settings import Settings
from tests.packs import fetch_pack
from tests.support.broker import Broker
from tests.support.waiting import eventually
from tests.support.worker import Worker, start_module, worker


@dataclass
class System:
    """A running system as a test sees it."""

    settings: Settings
    environment: Mapping[str, str]
    broker: Broker
    worker: Worker
    folder: Path

    def post(self, kind: str, **payload: Any) -> None:
        """Post a plain JSON message to `site`, as a client in any language would."""
        self.broker.post(json.dumps({"type": kind, **payload}).encode(), key=kind)

    def progress(self, domain: str) -> Progress:
        """Return the counts of a domain's crawl."""
        return Frontier(get_redis(self.settings.redis)).progress(domain)

    def manifest(self, domain: str) -> Manifest | None:
        """Return the manifest of a domain's pack, or None before the first one."""
        try:
            return read_manifest(open_store(self.settings.store), domain)
        except PackNotFound:
            return None

    def packed(self, domain: str, *, seconds: float = 60) -> Manifest:
        """Wait for a domain's pack and return its manifest."""
        description = f"a pack of {domain}; log:\n{self.worker.log[-3_000:]}"
        manifest = eventually(lambda: self.manifest(domain), description, seconds=seconds)
        assert manifest is not None
        return manifest

    def paths(self, domain: str) -> set[str]:
        """Return the paths of the pages in a domain's pack, copies of others included."""
        with contextlib.closing(sqlite3.connect(self.pack(domain))) as pack:
            return {str(path) for (path,) in pack.execute("SELECT path FROM pages WHERE NOT hidden OR canonical = ''")}

    def search(self, domain: str, text: str) -> list[Hit]:
        """Return the hits of a query in a domain's pack."""
        with contextlib.closing(PackSearcher(self.pack(domain), time_limit=30)) as searcher:
            return list(searcher.search(parse(text)).hits)

    def pack(self, domain: str) -> Path:
        """Return the latest pack of a domain, as a searcher would load it."""
        self.folder.mkdir(exist_ok=True)
        return fetch_pack(open_store(self.settings.store), domain, self.folder)


@contextmanager
def running_system(
    environment: Mapping[str, str], settings: Settings, folder: Path, *, concurrency: int = 2, app: str = "app"
) -> Iterator[System]:
    """Run a worker of an application on all queues, and beat, for the block."""
    log = folder / "worker.log"
    with (
        beat(environment, folder / "beat.log"),
        worker(environment, log, concurrency=concurrency, app=app) as running,
    ):
        yield System(settings, environment, Broker(settings.broker), running, folder / "packs")


@contextmanager
def beat(environment: Mapping[str, str], log: Path) -> Iterator[None]:
    """Run `celery beat` for the block."""
    running = start_module(environment, log, "celery", "-A", "app", "beat")
    try:
        yield
    finally:
        running.process.terminate()
        running.process.wait(60)
