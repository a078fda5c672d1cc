"""The packs that this process answers from: fetched when asked for, replaced when there is a newer one."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from app.errors import PackNotFound, PerennialError
from app.search.searcher import Searcher

log = logging.getLogger(__name__)

#: Domains share this many locks, so that those nobody ever indexed leave nothing behind.
_LOCKS = 64


@dataclass(slots=True)
class _Copy:
    """One version of a pack on this machine's disk, with the number of searches that use it."""

    version: str
    searcher: Searcher
    folder: Path
    checked: float
    readers: int = 0
    retired: bool = field(default=False)


class Library:
    """Lends searchers by domain, from any thread.

    A domain's version is looked at again when it was `recheck` seconds ago; a new one replaces the old one between two
    searches, and searches in flight end on the old one. Whatever fails on the way, the old one goes on answering.
    At most `capacity` packs are kept, those asked for last.
    """

    def __init__(
        self,
        folder: Path,
        *,
        fetch: Callable[[str, Path], Path],
        version: Callable[[str], str],
        capacity: int = 32,
        recheck: float = 1.0,
        time_limit: float = 1.0,
    ) -> None:
        """Keep packs below `folder` until `close`.

        `fetch(domain, folder)` puts a domain's pack into the folder and returns its path; `version(domain)` tells one
        pack of the domain from another, and raises PackNotFound where there is none.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(prefix="packs-", dir=folder, ignore_cleanup_errors=True)
        self._fetch = fetch
        self._version = version
        self._capacity = capacity
        self._recheck = recheck
        self._time_limit = time_limit
        self._copies: OrderedDict[str, _Copy] = OrderedDict()
        self._lock = threading.Lock()
        self._domain_locks = tuple(threading.Lock() for _ in range(_LOCKS))

    @contextmanager
    def searcher(self, domain: str) -> Iterator[Searcher]:
        """Lend the searcher of a domain. Raises PackNotFound, and what `fetch` raises where there is no older pack."""
        copy = self._borrow(domain)
        try:
            yield copy.searcher
        finally:
            with self._lock:
                copy.readers -= 1
                self._discard_unused(copy)

    def close(self) -> None:
        """Close every searcher and remove the files."""
        with self._lock:
            while self._copies:
                self._retire(self._copies.popitem()[1])
        self._folder.cleanup()

    def _borrow(self, domain: str) -> _Copy:
        copy = self._copies.get(domain)
        if copy is None or time.monotonic() - copy.checked >= self._recheck:
            self._look(domain, wait=copy is None)
        with self._lock:
            copy = self._copies.get(domain)
            if copy is None:
                raise PackNotFound(f"{domain} has no pack")
            self._copies.move_to_end(domain)
            copy.readers += 1
            return copy

    def _look(self, domain: str, *, wait: bool) -> None:
        """Bring the domain up to date, one thread at a time; the others do not wait while there is an older pack."""
        lock = self._domain_locks[hash(domain) % _LOCKS]
        if not lock.acquire(blocking=wait):
            return
        try:
            self._refresh(domain)
        except PackNotFound:
            self._put(domain, None)
            raise
        except (PerennialError, OSError) as error:
            if not self._keep(domain):
                raise
            log.warning("%s: the older pack goes on answering: %s", domain, error)
        finally:
            lock.release()

    def _refresh(self, domain: str) -> None:
        version = self._version(domain)
        copy = self._copies.get(domain)
        if copy is None or copy.version != version:
            self._put(domain, self._load(domain, version))
        else:
            copy.checked = time.monotonic()

    def _load(self, domain: str, version: str) -> _Copy:
        # A folder for each copy: one that is still being read must not share its file with its successor.
        folder = Path(tempfile.mkdtemp(dir=self._folder.name))
        try:
            searcher = Searcher(self._fetch(domain, folder), time_limit=self._time_limit)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return _Copy(version=version, searcher=searcher, folder=folder, checked=time.monotonic())

    def _keep(self, domain: str) -> bool:
        """Leave the pack at hand in its place for another while; False where there is none."""
        copy = self._copies.get(domain)
        if copy is not None:
            copy.checked = time.monotonic()
        return copy is not None

    def _put(self, domain: str, copy: _Copy | None) -> None:
        with self._lock:
            if old := self._copies.pop(domain, None):
                self._retire(old)
            if copy is not None:
                self._copies[domain] = copy
            while len(self._copies) > self._capacity:
                self._retire(self._copies.popitem(last=False)[1])

    def _retire(self, copy: _Copy) -> None:
        copy.retired = True
        self._discard_unused(copy)

    def _discard_unused(self, copy: _Copy) -> None:
        if copy.retired and copy.readers == 0:
            copy.searcher.close()
            shutil.rmtree(copy.folder, ignore_errors=True)
