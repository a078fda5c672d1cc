"""The open packs of a searcher: lent to queries, and replaced between two queries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from app.cluster.protocol import PackVersion
from app.errors import NotHere
from app.search.pack_searcher import PackSearcher


@dataclass(slots=True)
class _Copy:
    """One version of a pack, open, with the number of queries that use it."""

    holding: PackVersion
    searcher: PackSearcher
    readers: int = 0
    retired: bool = field(default=False)


class OpenPacks:
    """Lends searchers by domain, from any thread.

    A version that is replaced or dropped is closed and removed when the last query that uses it has ended, or at once;
    its room is taken until then. Nothing here waits for a disk but opening a pack, which `put` does before it swaps.
    """

    def __init__(self, *, remove: Callable[[Path], None], time_limit: float) -> None:
        """`remove` deletes a pack's files; a search may take `time_limit` seconds."""
        self._remove = remove
        self._time_limit = time_limit
        self._copies: dict[str, _Copy] = {}
        self._retired_mb = 0
        self._lock = threading.Lock()
        self._discarded = threading.Condition(self._lock)

    @contextmanager
    def lend(self, domain: str) -> Iterator[PackSearcher]:
        """Lend the searcher of a domain; raises NotHere where there is none."""
        copy = self._borrow(domain)
        try:
            yield copy.searcher
        finally:
            self._give_back(copy)

    def put(self, holding: PackVersion, path: Path) -> None:
        """Answer from this version from now on; raises PackCorrupt, and then all stays as it was."""
        copy = _Copy(holding, PackSearcher(path, time_limit=self._time_limit))
        with self._lock:
            old = self._copies.get(holding.domain)
            self._copies[holding.domain] = copy
            unused = self._retire(old) if old else None
        self._discard(unused)

    def drop(self, domain: str, sha256: str) -> bool:
        """Forget a domain's pack if it is this version; return whether it was."""
        with self._lock:
            copy = self._copies.get(domain)
            if copy is None or copy.holding.sha256 != sha256:
                return False
            del self._copies[domain]
            unused = self._retire(copy)
        self._discard(unused)
        return True

    def holding(self, domain: str) -> PackVersion | None:
        """Return the version of a domain that is answered from."""
        copy = self._copies.get(domain)
        return copy.holding if copy else None

    def path(self, domain: str) -> Path | None:
        """Return the database of a domain."""
        copy = self._copies.get(domain)
        return copy.searcher.path if copy else None

    def holdings(self) -> tuple[PackVersion, ...]:
        """Return what is answered from, in order of domain."""
        with self._lock:
            return tuple(self._copies[domain].holding for domain in sorted(self._copies))

    def used_mb(self) -> int:
        """Return the MB on disk, those included that are still read but no more answered from."""
        with self._lock:
            return self._retired_mb + sum(copy.holding.size_mb for copy in self._copies.values())

    def settle(self, seconds: float) -> None:
        """Wait until nothing is read that is no more answered from, `seconds` at most."""
        with self._discarded:
            self._discarded.wait_for(lambda: not self._retired_mb, seconds)

    def close(self) -> None:
        """Close all; their files stay."""
        with self._lock:
            copies, self._copies = list(self._copies.values()), {}
        for copy in copies:
            copy.searcher.close()

    def _borrow(self, domain: str) -> _Copy:
        with self._lock:
            copy = self._copies.get(domain)
            if copy is None:
                raise NotHere(f"{domain} is not on this searcher")
            copy.readers += 1
            return copy

    def _give_back(self, copy: _Copy) -> None:
        with self._lock:
            copy.readers -= 1
            unused = copy if copy.retired and not copy.readers else None
        self._discard(unused)

    def _retire(self, copy: _Copy) -> _Copy | None:
        """Let no further query have it; return it if none has."""
        copy.retired = True
        self._retired_mb += copy.holding.size_mb
        return None if copy.readers else copy

    def _discard(self, copy: _Copy | None) -> None:
        """Close and remove a version that nobody uses, outside of the lock: deleting a large file takes a while."""
        if copy is None:
            return
        copy.searcher.close()
        self._remove(copy.searcher.path)
        with self._discarded:
            self._retired_mb -= copy.holding.size_mb
            self._discarded.notify_all()
