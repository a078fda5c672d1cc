"""Machines die and come, packs are replaced, the broker is killed: queries go on being answered, and rightly."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from app.broker.errors import ApplicationError
from app.cluster.client.cluster import ClusterSearchClient
from app.cluster.client.contract import SearchClient
from app.cluster.protocol import Routes
from app.errors import SearchUnavailable
from app.search.contract import SearchRequest, SearchResult
from config.settings import Settings
from tests.support.fleet import Packs, fleet, pages_of, ready, title_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance


#: Threads that send queries, and seconds between two queries of one thread.
THREADS, PAUSE = 4, 0.01


@dataclass
class Load:
    """Results of the queries: the number answered, the wrong ones, and the failed ones by phase and error.

    The versions of each domain from `oldest` to `newest` may answer.
    """

    finder: SearchClient
    newest: dict[str, int]
    oldest: dict[str, int]
    phase: str = ""
    answered: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    #: By version of the pack that answered.
    by_version: Counter[int] = field(default_factory=Counter)
    _over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def goes_on(self, queries: int = 100, *, seconds: float = 30) -> None:
        """Wait until `queries` more are answered; fails if an answer was wrong."""
        enough = self.answered + queries
        eventually(lambda: self.answered >= enough, f"{queries} more queries are answered: {self}", seconds=seconds)
        assert not self.wrong, self.wrong[:5]

    def _ask_on(self, seed: int) -> None:
        chance = random.Random(seed)
        domains = sorted(self.newest)
        while not self._over.wait(PAUSE):
            self._ask(chance.choice(domains), chance)

    def _ask(self, domain: str, chance: random.Random) -> None:
        oldest = self.oldest[domain]
        # The first part of a name is on the pages of this domain only.
        word = chance.choice([domain.partition(".")[0], "version", "nowhere"])
        try:
            found = self.finder.search(SearchRequest(q=word, domains=(domain,)))
        except ApplicationError as error:
            with self._lock:
                self.failed[f"{self.phase}: {type(error).__name__}: {error}"[:150]] += 1
            return
        except Exception as error:  # noqa: BLE001 - The thread must not end without a report.
            with self._lock:
                self.wrong.append(f"{word} of {domain}: {error!r}")
            return
        self._note(domain, word, found, oldest)

    def _note(self, domain: str, word: str, found: SearchResult, oldest: int) -> None:
        (source,) = found.sources
        version = int(source.generation)
        fits = oldest <= version <= self.newest[domain] and source.domain == domain
        right = 0 if word == "nowhere" else pages_of(version)
        shown = {(hit.domain, hit.title) for hit in found.hits}
        with self._lock:
            self.answered += 1
            self.by_version[version] += 1
            if not fits or found.total != right or shown != ({(domain, title_of(domain, version))} if right else set()):
                self.wrong.append(f"{self.phase}: {word} of {domain}, version {oldest} or later: {found}")


@contextmanager
def load(finder: SearchClient, versions: Mapping[str, int]) -> Iterator[Load]:
    """Send queries during the block; fails at its end if an answer was wrong."""
    found = Load(finder, dict(versions), dict(versions))
    threads = [threading.Thread(target=found._ask_on, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        found._over.set()
        for thread in threads:
            thread.join()
    assert not found.wrong, found.wrong[:5]


DOMAINS = tuple(f"{name}.example" for name in ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen"))
#: Seconds between heartbeats; a searcher is gone after three.
HEARTBEAT = "0.5"
#: Queries of a whole test that may stay without an answer: each one in flight when a machine dies has others to ask.
FEW = 8


def placed(
    finder: ClusterSearchClient, versions: Mapping[str, int], *, copies: int, searchers: int, after: str = ""
) -> Routes | None:
    """Return the routes once `copies` searchers serve each domain's version and no order is pending.

    They must not be those of an orchestrator `after` which another one came.
    """
    try:
        routes = finder.routes()
    except SearchUnavailable:
        return None
    found = {each.domain: (each.generation, each.newest, len(each.searchers)) for each in routes.routes}
    wanted = {domain: (version, copies, copies) for domain, version in versions.items()}
    there = (
        routes.ready
        and routes.orchestrator != after
        and len(routes.searchers) == searchers
        and not any(each.loading for each in routes.searchers)
        and sum(each.packs for each in routes.searchers) == copies * len(versions)  # Nothing is left to unload.
    )
    return routes if there and found == wanted else None


def test_queries_are_answered_while_searchers_and_orchestrator_come_and_go(
    settings: Settings, environment: dict[str, str], tmp_path: Path
) -> None:
    packs, versions = Packs(settings, tmp_path / "built"), dict.fromkeys(DOMAINS, 1)
    for domain in DOMAINS:
        packs.publish(domain, 1)
    environment = {**environment, "HEARTBEAT": HEARTBEAT, "REPLICAS": "2"}
    with fleet(environment, tmp_path / "logs") as crew, closing(ClusterSearchClient.of(settings)) as finder:

        def await_placed(*, copies: int = 2, searchers: int = 2, after: str = "") -> Routes:
            def found() -> Routes | None:
                return placed(finder, versions, copies=copies, searchers=searchers, after=after)

            with suppress(AssertionError):
                routes = eventually(found, "all is placed", seconds=30)
                assert routes is not None
                return routes
            raise AssertionError(f"not placed: {finder.routes()}\n{crew.logs()}")

        first, *searchers = crew.orchestrator(), *(crew.searcher() for _ in range(3))
        ready(first, *searchers)
        before = await_placed(searchers=3)

        def is_balanced() -> bool:  # A searcher that registered last gets its packs one by one.
            spread = [node.packs for node in finder.routes().searchers]
            return max(spread) - min(spread) <= 1

        eventually(is_balanced, "the packs are spread evenly")

        with load(finder, versions) as requests:
            requests.phase = "calm"
            requests.goes_on()
            assert not requests.failed, requests.failed

            requests.phase = "a searcher is killed"
            searchers[0].kill()
            requests.goes_on()
            await_placed()

            requests.phase = "the orchestrator is killed"
            first.kill()
            requests.goes_on()
            second = crew.orchestrator()
            ready(second)
            await_placed(after=before.orchestrator)

            requests.phase = "new versions"
            for domain in DOMAINS[:3]:
                versions[domain] = requests.newest[domain] = 2
                packs.publish(domain, 2)
                packs.announce(domain)
            await_placed()
            requests.oldest.update(versions)
            requests.goes_on()
            assert requests.by_version[2]

            requests.phase = "a searcher leaves"
            searchers[1].leave()
            requests.goes_on()
            alone = await_placed(copies=1, searchers=1)
            assert {route.missing for route in alone.routes} == {1}

            requests.phase = "a searcher comes"
            ready(crew.searcher())
            await_placed()
            requests.goes_on()
    assert requests.failed.total() <= FEW, requests.failed
