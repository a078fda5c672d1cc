"""A constant load of queries, with a check of every answer: of the right pack, and complete."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from app.broker.errors import ApplicationError
from app.cluster.client.contract import SearchClient
from app.search.contract import SearchRequest, SearchResult
from tests.support.fleet import pages_of, title_of
from tests.support.waiting import eventually

#: Threads that send queries, and seconds between two queries of one thread.
THREADS, PAUSE = 4, 0.01


@dataclass
class Versions:
    """The versions of each domain that may answer: `oldest` to `newest`."""

    newest: dict[str, int]
    oldest: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.oldest = dict(self.newest)


@dataclass
class Load:
    """Results of the queries: the number answered, the wrong ones, and the failed ones by phase and error."""

    finder: SearchClient
    versions: Versions
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
        domains = sorted(self.versions.newest)
        while not self._over.wait(PAUSE):
            self._ask(chance.choice(domains), chance)

    def _ask(self, domain: str, chance: random.Random) -> None:
        own, oldest = name_of(domain), self.versions.oldest[domain]
        word = chance.choice([own, "version", "nowhere"])
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
        fits = oldest <= version <= self.versions.newest[domain] and source.domain == domain
        right = 0 if word == "nowhere" else pages_of(version)
        shown = {(hit.domain, hit.title) for hit in found.hits}
        with self._lock:
            self.answered += 1
            self.by_version[version] += 1
            if not fits or found.total != right or shown != ({(domain, title_of(domain, version))} if right else set()):
                self.wrong.append(f"{self.phase}: {word} of {domain}, version {oldest} or later: {found}")


def name_of(domain: str) -> str:
    """Return the word that is on this domain's pages only."""
    return domain.partition(".")[0]


@contextmanager
def load(finder: SearchClient, versions: Mapping[str, int]) -> Iterator[Load]:
    """Send queries during the block; fails at its end if an answer was wrong."""
    found = Load(finder, Versions(dict(versions)))
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
