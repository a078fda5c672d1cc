"""The open packs of a searcher: lent to queries, and replaced between two queries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from app.cluster.protocol import PackVersion
from app.errors import PackNotLoaded
from app.search.pack_searcher import PackSearcher
from app.search.search_settings import NO_SETTINGS, SearchSettings


@dataclass(slots=True)
class _OpenPack:
    """One version of a pack, open, with the number of queries that use it."""

    version: PackVersion
    searcher: PackSearcher
    readers: int = 0
    retired: bool = False


class OpenPacks:
    """Lends pack searchers by domain, from any thread.

    A version that was replaced or dropped is retired. It is closed and removed when the last query that uses it has
    ended, and takes room until then. Only `put` waits for a disk, to open a pack before it replaces the previous one.
    """

    def __init__(self, *, remove: Callable[[Path], None], time_limit: float) -> None:
        """`remove` deletes a pack's files; a search may take `time_limit` seconds."""
        self._remove = remove
        self._time_limit = time_limit
        self._packs: dict[str, _OpenPack] = {}
        self._settings: dict[str, SearchSettings] = {}
        self._used_mb = self._retired_mb = 0
        self._changes = 0
        self._lock = threading.Lock()
        self._discarded = threading.Condition(self._lock)

    @contextmanager
    def lend(self, domain: str) -> Iterator[PackSearcher]:
        """Lend the searcher of a domain's pack; raises PackNotLoaded for a domain without a pack."""
        with self._lock:
            pack = self._packs.get(domain)
            if pack is None:
                raise PackNotLoaded(f"{domain} is not on this searcher")
            pack.readers += 1
        try:
            yield pack.searcher
        finally:
            with self._lock:
                pack.readers -= 1
                unused = pack if pack.retired and not pack.readers else None
            self._discard(unused)

    def put(self, version: PackVersion, path: Path) -> None:
        """Serve this version from now on; raises PackCorrupt, and then the previous version stays."""
        domain = version.domain
        pack = _OpenPack(version, PackSearcher(path, time_limit=self._time_limit))
        previous = unused = None
        is_served = False
        while not is_served:
            settings = self._settings.get(domain, NO_SETTINGS)
            try:
                pack.searcher.apply(settings)
            except BaseException:
                pack.searcher.close()
                raise
            with self._lock:
                # Settings that have changed meanwhile are applied before, since they may fail.
                is_served = self._settings.get(domain, NO_SETTINGS) is settings
                if is_served:
                    previous = self._packs.get(domain)
                    self._packs[domain] = pack
                    self._used_mb += version.size_mb
                    self._changes += 1
                    unused = self._retire(previous) if previous else None
        self._discard(unused)

    def apply(self, domain: str, settings: SearchSettings) -> None:
        """Search a domain by these settings from now on, in the pack that is served and in later ones.

        Raises PackCorrupt, and then the pack that is served keeps its former settings.
        """
        with self._lock:
            self._settings[domain] = settings
            if settings == NO_SETTINGS:
                del self._settings[domain]
        with suppress(PackNotLoaded), self.lend(domain) as searcher:
            searcher.apply(settings)

    def drop(self, domain: str, sha256: str) -> None:
        """Drop a domain's pack if it is this version."""
        with self._lock:
            pack = self._packs.get(domain)
            if pack is None or pack.version.sha256 != sha256:
                return
            del self._packs[domain]
            self._changes += 1
            unused = self._retire(pack)
        self._discard(unused)

    def version(self, domain: str) -> PackVersion | None:
        """Return the version of a domain's pack that is served."""
        pack = self._packs.get(domain)
        return pack.version if pack else None

    def path(self, domain: str) -> Path | None:
        """Return the path of the database that is served for a domain."""
        pack = self._packs.get(domain)
        return pack.searcher.path if pack else None

    def changes(self) -> int:
        """Return how often the versions that are served have changed since the start."""
        return self._changes

    def versions(self) -> tuple[int, tuple[PackVersion, ...]]:
        """Return the versions that are served, in order of domain, after the number of changes that led to them."""
        with self._lock:
            return self._changes, tuple(self._packs[domain].version for domain in sorted(self._packs))

    def used_mb(self) -> int:
        """Return the MB on disk, including retired versions that queries still use."""
        return self._used_mb

    def wait_for_retired(self, seconds: float) -> None:
        """Wait until all retired versions are removed, `seconds` at most."""
        with self._discarded:
            self._discarded.wait_for(lambda: not self._retired_mb, seconds)

    def close(self) -> None:
        """Close all packs; their files stay."""
        with self._lock:
            packs, self._packs = list(self._packs.values()), {}
        for pack in packs:
            pack.searcher.close()

    def _retire(self, pack: _OpenPack) -> _OpenPack | None:
        """Mark a version as retired; return it if no query uses it."""
        pack.retired = True
        self._retired_mb += pack.version.size_mb
        return None if pack.readers else pack

    def _discard(self, pack: _OpenPack | None) -> None:
        """Close and remove an unused version, without the lock: deleting a large file takes a while."""
        if pack is None:
            return
        pack.searcher.close()
        self._remove(pack.searcher.path)
        with self._discarded:
            self._retired_mb -= pack.version.size_mb
            self._used_mb -= pack.version.size_mb
            self._discarded.notify_all()
