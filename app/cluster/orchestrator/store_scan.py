"""Scans of the store for packs, in a thread: a listing may take longer than requests can wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from app.broker.errors import InvalidMessage
from app.cluster.placement.model import Pack
from app.cluster.protocol import size_mb
from app.errors import InvalidKey, PackCorrupt, PackNotFound, StoreError
from app.pack.manifest import Manifest, list_manifests, read_manifest
from app.storage.marker import create_marker, read_marker
from app.storage.store import ObjectStore

log = logging.getLogger(__name__)

#: Seconds between two scans of the whole store: an `update` may have been lost.
SCAN_INTERVAL: Final = 300.0
#: Seconds between two checks for unclear domains, and before the same ones are read from the store again.
UNCLEAR_CHECK_INTERVAL: Final = 1.0
UNCLEAR_RESCAN_INTERVAL: Final = 10.0
#: Seconds before a failed scan is repeated: after the first failure, and at most. Each failure doubles them.
_FIRST_BACKOFF, _LONGEST_BACKOFF = 1.0, 30.0


def pack_of(manifest: Manifest) -> Pack:
    """Return the pack that a manifest describes, as placement knows it."""
    return Pack(
        domain=manifest.domain,
        sha256=manifest.sha256,
        generation=manifest.generation,
        size_mb=size_mb(manifest.uncompressed_size),
        pages=manifest.pages,
        built_at=manifest.built_at,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """The result of a scan. `whole` is false for a scan of some domains; `error` is why it failed.

    `store_id` is the id in the store's marker, empty without a marker.
    """

    packs: tuple[Pack, ...] = ()
    deleted: frozenset[str] = frozenset()
    whole: bool = False
    error: str = ""
    store_id: str = ""


class StoreScan:
    """One scan at a time, started and collected by the same thread."""

    def __init__(self, store: Callable[[], ObjectStore]) -> None:
        """`store` opens the store."""
        self._store = store
        self._thread: threading.Thread | None = None
        self._result = ScanResult()
        self._outdated: set[str] = set()

    @property
    def is_running(self) -> bool:
        """Whether a scan was started whose result was not collected yet."""
        return self._thread is not None

    def start(self, domains: frozenset[str], *, whole: bool) -> None:
        """Scan these domains; with `whole`, list all packs and then read the domains that the listing lacks."""
        self._outdated.clear()
        self._thread = threading.Thread(target=self._run, args=(domains, whole), name="store-scan", daemon=True)
        self._thread.start()

    def discard(self, domain: str) -> None:
        """Discard the running scan's result for a domain, since a newer version of its pack is known."""
        self._outdated.add(domain)

    def result(self) -> ScanResult | None:
        """Return the result of a finished scan once, or None."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        packs = tuple(pack for pack in self._result.packs if pack.domain not in self._outdated)
        return replace(self._result, packs=packs, deleted=self._result.deleted - self._outdated)

    def _run(self, domains: frozenset[str], whole: bool) -> None:
        try:
            store = self._store()
            packs = [pack_of(manifest) for manifest in list_manifests(store)] if whole else []
            deleted = set()
            for domain in sorted(domains - {pack.domain for pack in packs}):
                try:
                    packs.append(pack_of(read_manifest(store, domain)))
                except (PackNotFound, InvalidKey, InvalidMessage):
                    # An invalid domain counts as deleted: no store can have its pack.
                    deleted.add(domain)
                except PackCorrupt as error:
                    # Searchers may have an intact version: keep it until the manifest is readable.
                    log.warning("%s: manifest not readable, searchers keep their packs: %s", domain, error)
            store_id = read_marker(store)
            if packs and not store_id:
                log.warning("The store has packs but no marker, so it gets one now")
                store_id = create_marker(store)
            self._result = ScanResult(packs=tuple(packs), deleted=frozenset(deleted), whole=whole, store_id=store_id)
        except (StoreError, OSError) as error:
            self._result = ScanResult(error=str(error))
        except Exception as error:
            log.exception("Scan of the store failed")
            self._result = ScanResult(error=repr(error))


class ScanSchedule:
    """Decides when to scan the store, and which domains.

    `check` returns what to believe of a scan, given the domains of all known packs; None for a scan to ignore.
    """

    def __init__(
        self, scan: StoreScan, *, check: Callable[[ScanResult, frozenset[str]], ScanResult | None], now: float
    ) -> None:
        self._scan = scan
        self._check = check
        self._whole_at = self._check_at = now
        self._requested: set[str] = set()
        self._backoff = _FIRST_BACKOFF
        #: Whether the whole store was scanned once.
        self.is_complete = False

    def result(self, *, domains: Callable[[], frozenset[str]], now: float) -> ScanResult | None:
        """Return what to believe of a finished scan, or None. A failed or ignored scan is repeated with backoff.

        `domains` returns those of all known packs.
        """
        result = self._scan.result()
        if result is None:
            return None
        if result.error:
            log.warning("Scan of the store failed, again in %g s: %s", self._backoff, result.error)
        believed = None if result.error else self._check(result, domains())
        if believed is None:
            self._whole_at = now + self._backoff
            self._backoff = min(2 * self._backoff, _LONGEST_BACKOFF)
            return None
        self._backoff = _FIRST_BACKOFF
        if believed.whole:
            self.is_complete = True
            self._whole_at = now + SCAN_INTERVAL
        return believed

    def discard(self, domain: str) -> None:
        """Discard the running scan's result for a domain, since a newer version of its pack is known."""
        self._scan.discard(domain)

    def request(self, domain: str) -> None:
        """Read a domain's pack with the next scan, which is due at once."""
        self._requested.add(domain)
        self._check_at = 0.0

    def start_due(
        self, *, domains: Callable[[], frozenset[str]], unclear: Callable[[], frozenset[str]], now: float
    ) -> None:
        """Start the scan that is due: of the whole store with these domains, or of the unclear domains."""
        if self._scan.is_running:
            return
        if now >= self._whole_at:
            self._scan.start(domains() | unclear() | self._requested, whole=True)
            self._requested.clear()
        elif self.is_complete and now >= self._check_at:
            named = unclear() | self._requested
            self._requested.clear()
            self._check_at = now + (UNCLEAR_RESCAN_INTERVAL if named else UNCLEAR_CHECK_INTERVAL)
            if named:
                self._scan.start(named, whole=False)
