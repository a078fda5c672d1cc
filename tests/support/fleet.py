"""An orchestrator and searchers as processes that come, go and are killed, and the packs that they answer from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from app.broker.publishing import Publisher
from app.cluster.protocol import Routes
from app.messages.envelopes import event_message
from app.pack.manifest import Manifest
from app.storage.layout import Page, manifest_key
from app.storage.open import open_store
from app.storage.store import ObjectStore
from config.routes import ORCHESTRATOR
from config.settings import Settings
from tests.packs import BUILT_AT, publish, write_pack
from tests.support.waiting import eventually
from tests.support.worker import Worker, start, start_module


class Fleet:
    """Starts workers of the application; all are gone when the block ends."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._environment = environment
        self._folder = folder
        self._workers: list[Worker] = []

    def orchestrator(self) -> Worker:
        """Start an orchestrator; it is not ready yet."""
        options = {"queues": (ORCHESTRATOR,), "concurrency": 1, "options": ("--pool=solo",)}
        return self._add(start(self._environment, self._log("orchestrator"), **options))  # type: ignore[arg-type]

    def worker(self, *queues: str) -> Worker:
        """Start a worker of some queues; it is not ready yet."""
        return self._add(start(self._environment, self._log(queues[0]), queues=queues))

    def searcher(self, *, disk_mb: int = 100) -> Worker:
        """Start a searcher with `disk_mb` of disk; it is not ready yet."""
        environment = {**self._environment, "SEARCHER_DISK_MB": str(disk_mb)}
        return self._add(start_module(environment, self._log("searcher"), "app.cluster.searcher"))

    def _log(self, kind: str) -> Path:
        return self._folder / f"{kind}{len(self._workers)}.log"

    def _add(self, worker: Worker) -> Worker:
        self._workers.append(worker)
        return worker

    def end(self) -> None:
        """Kill all processes that still run."""
        for each in self._workers:
            if each.process.poll() is None:
                each.kill()

    def logs(self) -> str:
        """Return the last lines of every log."""
        return "\n".join(f"{each.name}:\n{each.log[-1_500:]}" for each in self._workers)


@contextmanager
def fleet(environment: Mapping[str, str], folder: Path) -> Iterator[Fleet]:
    """Yield an empty fleet for the block."""
    folder.mkdir(parents=True, exist_ok=True)
    found = Fleet(environment, folder)
    try:
        yield found
    finally:
        found.end()


def ready(*workers: Worker) -> None:
    """Wait until all workers are ready."""
    for each in workers:
        eventually(each.ready, f"{each.name} is ready", seconds=60)


# Packs with their version in every page


class Packs:
    """Versions of packs in a store: each has one page more than the previous one, and every page names its version."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._store: ObjectStore = open_store(settings.store)
        self._broker = settings.broker
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def publish(self, domain: str, version: int, *, built_at: str = BUILT_AT) -> Manifest:
        """Put a version into the store; return its manifest."""
        title = title_of(domain, version)
        pages = [_page(domain, number, title) for number in range(pages_of(version))]
        path = self._folder / f"{domain}.{version}.sqlite"
        write_pack(path, pages, domain=domain, generation=version)
        manifest = publish(self._store, path, domain=domain, generation=version, pages=len(pages), built_at=built_at)
        path.unlink()
        return manifest

    def announce(self, domain: str) -> None:
        """Announce the newest version, as a packer does."""
        manifest = json.loads(self._store.get(manifest_key(domain)).data)
        publisher = Publisher(self._broker)
        publisher.publish([event_message("update", manifest)])
        publisher.close()


def title_of(domain: str, version: int) -> str:
    """Return the title of every page of a version: the domain's own word, and the version's."""
    return f"{domain.partition('.')[0]} version{version}"


def pages_of(version: int) -> int:
    """Return the number of pages of a version."""
    return 2 + version


def _page(domain: str, number: int, title: str) -> Page:
    url = f"https://{domain}/{number}"
    return Page(canonical_key=url, url=url, domain=domain, path=f"/{number}", title=title, body=f"Page {number} of it.")


# Routes


def placed(routes: Routes, versions: Mapping[str, int], *, copies: int, missing: int = 0) -> bool:
    """Return whether `copies` searchers serve each domain's version and `missing` copies are missing."""
    found = {route.domain: (route.generation, len(route.searchers), route.missing) for route in routes.routes}
    return routes.ready and found == {domain: (version, copies, missing) for domain, version in versions.items()}
