"""Collect the records of a round from the outside: store, packs, dead set, queues, frontier, routes and processes."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import amqp
import redis

from app.broker.errors import ApplicationError
from app.cluster.client.cluster import ClusterSearchClient
from app.crawl.frontier.frontier import Frontier
from app.crawl.urls import path_of
from app.errors import SearchUnavailable
from app.messages.dead_sets import dead_sets, domain_of, payload_of, task_of
from app.pack.manifest import read_manifest
from app.storage.layout import Page, content_prefix, from_json
from app.text.lines import without_ends
from app.timers.timers import Timers
from app.topology.retry_policies import retry_policies
from config.routes import REQUESTS, TICK
from tests.chaos.ledger import Letter, PackRecord, Remains
from tests.chaos.sites import SitePlan
from tests.packs import fetch_pack
from tests.support.clients import SystemClients

#: Seconds between two checks for a new pack: less than a domain's timer, so that no generation is missed.
PAUSE = 0.1

#: What reading raises while a part of the system is away.
AWAY = (ApplicationError, amqp.AMQPError, redis.RedisError, OSError)


class PackWatch:
    """Keeps a record of every generation of the packs of some domains."""

    def __init__(self, system: SystemClients, domains: Sequence[str], folder: Path) -> None:
        self._system = system
        self._domains = domains
        self._folder = folder
        self._seen: dict[str, int] = dict.fromkeys(domains, 0)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pack-watch", daemon=True)
        self.records: list[PackRecord] = []

    def start(self) -> None:
        """Start to watch."""
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(PAUSE):
            for domain in self._domains:
                # No pack yet, or a store that fails at the moment.
                with suppress(ApplicationError, OSError):
                    self._read(domain)

    def _read(self, domain: str) -> None:
        manifest = read_manifest(self._system.store, domain)
        if manifest.generation == self._seen[domain]:
            return
        path = fetch_pack(self._system.store, domain, self._folder)
        with closing(sqlite3.connect(path)) as pack:
            meta = dict(pack.execute("SELECT key, value FROM meta"))
            rows = pack.execute("SELECT path, title, body FROM pages")
            contents = {path: f"{title}\n{without_ends(body)}" for path, title, body in rows}
        generation = int(meta["generation"])
        self.records.append(PackRecord(domain, generation, meta["kind"], contents))
        self._seen[domain] = generation
        path.unlink()


class Observer:
    """Reads what happened in a system and what is left in it. Each method raises an error of AWAY while a part is away.

    `sites` are the sites of the round by domain.
    """

    def __init__(self, system: SystemClients, sites: Mapping[str, SitePlan]) -> None:
        self._system = system
        self._sites = sites
        self._client = ClusterSearchClient.of(system.settings)
        self._log_before = 0

    def start(self) -> None:
        """Begin to observe: what the worker has printed before is not of this round."""
        self._log_before = len(self._system.log("worker"))

    def close(self) -> None:
        """Close the connection of the search client."""
        self._client.close()

    def stored(self) -> dict[str, dict[str, str]]:
        """Return title and body of each stored page, by domain and path."""
        return {domain: self._stored_of(domain) for domain in self._sites}

    def letters(self) -> tuple[Letter, ...]:
        """Return the dead letters about the sites."""
        found = []
        for letter in dead_sets(self._system.settings).letters():
            domain, url = domain_of(letter), payload_of(letter).get("url")
            if domain in self._sites:
                found.append(Letter(domain, task_of(letter), path_of(str(url)) if url else ""))
        return tuple(found)

    def remains(self, packs: Sequence[PackRecord], ended: Sequence[str]) -> Remains:
        """Return what is left to do, and which processes and packs are not available."""
        frontier, timers = Frontier(self._system.redis), Timers(self._system.redis)
        return Remains(
            timers=[domain for domain in self._sites if timers.running(domain)],
            open_messages={domain: frontier.open_messages(domain) for domain in self._sites},
            queued=self._queued(),
            not_running=self._system.not_running(),
            ended=tuple(ended),
            unserved=self._unserved(packs),
            open_urls={
                crawl.domain: [each.url for each in frontier.open_urls(crawl.id)]
                for crawl in frontier.active()
                if crawl.domain in self._sites
            },
            published_again=self._published_again(),
        )

    def _published_again(self) -> list[str]:
        lines = self._system.log("worker")[self._log_before :].splitlines()
        return [line for line in lines if "are published again:" in line]

    def _stored_of(self, domain: str) -> dict[str, str]:
        store = self._system.store
        contents = [from_json(store.get(stat.key).data) for stat in store.list(content_prefix(domain))]
        return {page.path: f"{page.title}\n{page.body}" for page in contents if isinstance(page, Page)}

    def _queued(self) -> dict[str, int]:
        policies = retry_policies(self._system.settings)
        left_out = {TICK, REQUESTS, *policies.dead_sets()}
        declared = (queue.name for queue in (*policies.work_queues(), *policies.queues()))
        names = list(dict.fromkeys(name for name in declared if name not in left_out))
        return dict(zip(names, self._system.broker.depths(names), strict=True))

    def _unserved(self, packs: Sequence[PackRecord]) -> list[str]:
        newest = {pack.domain: pack.generation for pack in sorted(packs, key=lambda pack: pack.generation)}
        try:
            routes = self._client.routes().routes
        except SearchUnavailable:  # The orchestrator does not answer.
            return list(newest)
        served = {each.domain: each.generation for each in routes if each.newest}
        return [domain for domain, generation in newest.items() if served.get(domain, 0) < generation]


@contextmanager
def watched_packs(system: SystemClients, domains: Sequence[str], folder: Path) -> Iterator[PackWatch]:
    """Watch the packs of some domains during the block."""
    watch = PackWatch(system, domains, folder)
    watch.start()
    with closing(watch):
        yield watch
