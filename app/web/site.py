"""What the web answers from: the packs of one store, listed, fetched and searched."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.crawl.urls import domain_named
from app.errors import InvalidMessage, InvalidQuery, PackError, PackNotFound, PerennialError, SearchTimeout, StoreError
from app.pack.read import Manifest, fetch_pack, list_manifests, read_manifest
from app.search.library import Library
from app.search.query import Query, parse
from app.search.results import PackInfo, Results
from app.storage.keys import MANIFEST_PREFIX
from app.storage.store import ObjectStore

#: Statuses of the errors that a request may end in, first match wins.
_STATUSES: tuple[tuple[type[PerennialError], int], ...] = (
    (InvalidQuery, 400),
    (InvalidMessage, 400),
    (PackNotFound, 404),
    (SearchTimeout, 503),
    (PackError, 503),
    (StoreError, 503),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A query, the pack it was asked of, and what was found."""

    query: Query
    info: PackInfo
    results: Results


def status_of(error: PerennialError) -> int:
    """Return the HTTP status that tells of an error."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


class Site:
    """The packs of one store, from any thread. Looks at the store at most every `recheck` seconds."""

    def __init__(self, store: ObjectStore, folder: Path, *, recheck: float = 1.0, time_limit: float = 1.0) -> None:
        """Keep unpacked packs below `folder`; let a search take `time_limit` seconds."""
        self._store = store
        self._recheck = recheck
        self._lock = threading.Lock()
        self._manifests: tuple[Manifest, ...] = ()
        self._listed = float("-inf")
        self._library = Library(
            folder,
            fetch=lambda domain, into: fetch_pack(store, domain, into),
            version=lambda domain: read_manifest(store, domain).sha256,
            recheck=recheck,
            time_limit=time_limit,
        )

    def catalogue(self) -> Sequence[Manifest]:
        """Return the manifests of all packs in order of domain; raises StoreError."""
        with self._lock:
            if time.monotonic() - self._listed >= self._recheck:
                self._manifests = tuple(sorted(list_manifests(self._store), key=lambda manifest: manifest.domain))
                self._listed = time.monotonic()
            return self._manifests

    def search(self, domain: str, text: str, *, offset: int = 0, limit: int = 10) -> Answer:
        """Search a domain; raises InvalidUrl (the domain), InvalidQuery, PackNotFound, PackError, StoreError."""
        query = parse(text)
        with self._library.searcher(domain_named(domain)) as searcher:
            return Answer(query, searcher.info, searcher.search(query, offset=offset, limit=limit))

    def check(self) -> None:
        """Raise StoreError unless the store answers."""
        next(iter(self._store.list(MANIFEST_PREFIX)), None)

    def close(self) -> None:
        """Close all packs and remove their files."""
        self._library.close()
