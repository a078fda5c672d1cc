"""Reads of announced packs from the store, in a thread: a store that hangs delays neither requests nor reports."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from app.cluster.orchestrator.store_scan import pack_of
from app.cluster.placement.model import Pack
from app.errors import PackCorrupt, PackNotFound, StoreError
from app.pack.manifest import read_manifest
from app.storage.store import ObjectStore

log = logging.getLogger(__name__)

#: Seconds before a failed read is repeated: after the first failure, and at most. Each failure in a row doubles them.
_FIRST_BACKOFF, _LONGEST_BACKOFF = 1.0, 30.0
#: Seconds of a read after which it is logged as slow. The store's own time limits end it.
_SLOW: Final = 10.0


class PackReads:
    """Reads packs one after the other. A domain that is requested again while its pack is read is read once more."""

    def __init__(self, store: Callable[[], ObjectStore]) -> None:
        """`store` opens the store."""
        self._store = store
        self._requests: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[str, Pack | None]] = queue.SimpleQueue()
        self._waiting: set[str] = set()
        self._slow_at = float("inf")
        self._thread = threading.Thread(target=self._run, name="pack-reads", daemon=True)

    def request(self, domain: str) -> None:
        """Read the pack of a domain soon; returns at once."""
        if domain not in self._waiting:
            self._waiting.add(domain)
            self._requests.put(domain)
        if self._thread.ident is None:
            self._thread.start()

    def results(self) -> Iterator[tuple[str, Pack | None]]:
        """Yield each domain that was read since, with its pack, or None for a domain without one."""
        if time.monotonic() > self._slow_at:
            self._slow_at = float("inf")
            log.warning("Read of an announced pack takes more than %g s: the store answers slowly", _SLOW)
        while not self._results.empty():
            yield self._results.get()

    def _run(self) -> None:
        backoff = _FIRST_BACKOFF
        while True:
            domain = self._requests.get()
            self._waiting.discard(domain)
            self._slow_at = time.monotonic() + _SLOW
            try:
                self._results.put((domain, pack_of(read_manifest(self._store(), domain))))
            except PackNotFound:
                self._results.put((domain, None))
            except PackCorrupt as error:
                # Searchers may have an intact version: it stays until the manifest is readable.
                log.warning("%s: manifest not readable, searchers keep their packs: %s", domain, error)
            except (StoreError, OSError) as error:
                log.warning("%s: announced pack not read, again in %g s: %s", domain, backoff, error)
                time.sleep(backoff)
                backoff = min(2 * backoff, _LONGEST_BACKOFF)
                self.request(domain)
                continue
            except Exception:
                log.exception("%s: announced pack not read", domain)
            finally:
                self._slow_at = float("inf")
            backoff = _FIRST_BACKOFF
