"""Scans of the store for packs, and which missing packs count as deleted.

Scans run in threads: a store that is slow or hangs delays neither requests nor reports. An empty, unmounted or other
store must not empty the searchers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from app.broker.errors import InvalidMessage
from app.cluster.placement.model import Pack
from app.cluster.protocol import size_mb
from app.crawl.record.removed_sites import removed_at
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
#: Seconds after the removal of a site in which its pack may vanish because of it.
_REMOVED_OF_LATE: Final = 86_400.0
#: Seconds before a failed scan is repeated: after the first failure, and at most. Each failure doubles them.
_FIRST_BACKOFF, _LONGEST_BACKOFF = 1.0, 30.0
#: Share of the packs that the store may lose while the orchestrator runs. Searchers keep more.
MAX_DELETED_SHARE: Final = 0.5
#: Packs that may be deleted whatever their share, so that small installations work.
ALWAYS_DELETABLE: Final = 3


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

    `removed` are those of the deleted domains that an operator removed of late. `store_id` is the id in the store's
    marker, empty without a marker.
    """

    packs: tuple[Pack, ...] = ()
    deleted: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
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
        #: The domains of the last scan.
        self.domains: frozenset[str] = frozenset()
        #: When the next scan may start: after a failed one it is repeated with backoff.
        self.due_at = 0.0
        self._backoff = _FIRST_BACKOFF

    @property
    def is_running(self) -> bool:
        """Whether a scan was started whose result was not collected yet."""
        return self._thread is not None

    def start(self, domains: frozenset[str], *, whole: bool) -> None:
        """Scan these domains; with `whole`, list all packs and then read the domains that the listing lacks."""
        self.domains = domains
        self._outdated.clear()
        self._thread = threading.Thread(target=self._run, args=(domains, whole), name="store-scan", daemon=True)
        self._thread.start()

    def discard(self, domains: Iterable[str]) -> None:
        """Discard the running scan's result for domains that are read again from now on."""
        self._outdated.update(domains)

    def result(self) -> ScanResult | None:
        """Return the result of a finished scan once, or None."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        packs = tuple(pack for pack in self._result.packs if pack.domain not in self._outdated)
        return replace(
            self._result,
            packs=packs,
            deleted=self._result.deleted - self._outdated,
            removed=self._result.removed - self._outdated,
        )

    def succeeded(self, *, due_at: float) -> None:
        """Note that the result was believed, and when the next scan may start."""
        self.due_at, self._backoff = due_at, _FIRST_BACKOFF

    def failed(self, error: str, *, now: float) -> None:
        """Log the error of a scan, empty for one that was not believed, and repeat it with backoff."""
        if error:
            scan = "Scan of the store" if self._result.whole else "Read of announced packs"
            log.warning("%s failed, again in %g s: %s", scan, self._backoff, error)
        self.due_at = now + self._backoff
        self._backoff = min(2 * self._backoff, _LONGEST_BACKOFF)

    def _run(self, domains: frozenset[str], whole: bool) -> None:
        try:
            store = self._store()
            packs = [pack_of(manifest) for manifest in list_manifests(store)] if whole else []
            deleted, removed = set[str](), set[str]()
            for domain in sorted(domains - {pack.domain for pack in packs}):
                try:
                    packs.append(pack_of(read_manifest(store, domain)))
                except (PackNotFound, InvalidKey, InvalidMessage):
                    # An invalid domain counts as deleted: no store can have its pack.
                    deleted.add(domain)
                    if _is_removed(store, domain):
                        removed.add(domain)
                except PackCorrupt as error:
                    # Searchers may have an intact version: keep it until the manifest is readable.
                    log.warning("%s: manifest not readable, searchers keep their packs: %s", domain, error)
            store_id = read_marker(store)
            if packs and not store_id:
                log.warning("The store has packs but no marker, so it gets one now")
                store_id = create_marker(store)
            self._result = ScanResult(
                packs=tuple(packs),
                deleted=frozenset(deleted),
                removed=frozenset(removed),
                whole=whole,
                store_id=store_id,
            )
        except (StoreError, OSError) as error:
            self._result = ScanResult(whole=whole, error=str(error))
        except Exception as error:
            log.exception("Scan of the store failed")
            self._result = ScanResult(whole=whole, error=repr(error))


def _is_removed(store: ObjectStore, domain: str) -> bool:
    """Return whether an operator removed a domain of late. A pack that vanishes much later has another reason."""
    with suppress(InvalidKey):
        at = removed_at(store, domain)
        return at is not None and time.time() - at < _REMOVED_OF_LATE
    return False


class StoreGuard:
    """Remembers the id of the store that packs came from, and holds back deletions that are not plausible.

    MAX_DELETED_SHARE is measured from the largest number of packs that this object has seen: several scans delete no
    more than one. Packs of sites that an operator removed do not count. A restart of the orchestrator is the operator's
    consent to the present number.
    """

    def __init__(self) -> None:
        self._largest = 0
        #: Removed sites whose packs are still served: each is subtracted from the largest number once.
        self._removed = frozenset[str]()
        #: The id of the store that was believed last, empty before.
        self.store_id = ""
        self._logged = ""

    def check(self, result: ScanResult, domains: Set[str]) -> ScanResult | None:
        """Return what to believe of a scan, or None; `domains` are those of all packs in catalog and searchers.

        Nothing is believed of a store without its marker, or with another id than before, while packs are known. Of a
        scan that leaves too few of them, the deletions are not believed, but for those of removed sites.
        """
        if domains and not result.store_id:
            self._log("The store has no marker (empty, or not mounted?): its scan is ignored and every pack is kept")
            return None
        if domains and self.store_id and result.store_id != self.store_id:
            self._log(
                f"The store is another one ({result.store_id}, not {self.store_id}): its scan is ignored. If that is "
                "intended, restart the orchestrator"
            )
            return None
        removed = result.removed & domains
        others = domains - removed
        self._largest = max(self._largest - len(removed - self._removed), len(others))
        self._removed = (self._removed & domains) | removed
        most = max(ALWAYS_DELETABLE, int(MAX_DELETED_SHARE * self._largest))
        missing = result.deleted & others
        if missing and self._largest - len(others - missing) > most:
            self._log(
                f"The store lacks {len(missing)} of {len(others)} known packs. Only {most} of {self._largest} may "
                "vanish while the orchestrator runs: searchers keep them. To have them deleted, remove their sites: "
                "perennial site remove DOMAIN"
            )
            return replace(result, deleted=result.removed)
        self.store_id, self._logged = result.store_id, ""
        return result

    def _log(self, reason: str) -> None:
        """Log a refusal once, and again when its reason changes."""
        if reason != self._logged:
            log.error("%s", reason)
            self._logged = reason


class ScanSchedule:
    """Decides when to scan the store, and which domains.

    The whole store is scanned now and then. Domains whose pack was announced, or of which searchers have a version that
    is not clear, are read beside it: a listing may take long. `check` returns what to believe of a scan, given the
    domains of all known packs; None for a scan to ignore.
    """

    def __init__(
        self,
        store: Callable[[], ObjectStore],
        *,
        check: Callable[[ScanResult, frozenset[str]], ScanResult | None],
    ) -> None:
        """`store` opens the store."""
        self._whole, self._named = StoreScan(store), StoreScan(store)
        self._check = check
        self._check_at = 0.0
        self._requested: set[str] = set()
        #: Whether the whole store was scanned once.
        self.is_complete = False

    def request(self, domain: str) -> None:
        """Read a domain's pack soon, again if it is being read."""
        self._requested.add(domain)

    def results(self, *, domains: Callable[[], frozenset[str]], now: float) -> Iterator[ScanResult]:
        """Yield what to believe of finished scans. A failed or ignored scan is repeated with backoff.

        `domains` returns those of all known packs.
        """
        for scan in (self._whole, self._named):
            result = scan.result()
            if result is None:
                continue
            believed = None if result.error else self._check(result, domains())
            if believed is None:
                scan.failed(result.error, now=now)
                self._requested |= scan.domains if scan is self._named else frozenset()
                continue
            scan.succeeded(due_at=now + (SCAN_INTERVAL if believed.whole else 0.0))
            self.is_complete |= believed.whole
            yield believed

    def start_due(
        self, *, domains: Callable[[], frozenset[str]], unclear: Callable[[], frozenset[str]], now: float
    ) -> None:
        """Start the scans that are due: of the whole store with these domains, and of requested or unclear ones."""
        if self._named.is_running:
            return
        if now >= self._whole.due_at and not self._whole.is_running:
            self._whole.start(domains() | unclear(), whole=True)
        if self.is_complete and now >= self._check_at:
            found = unclear()
            self._requested |= found
            self._check_at = now + (UNCLEAR_RESCAN_INTERVAL if found else UNCLEAR_CHECK_INTERVAL)
        if self._requested and now >= self._named.due_at:
            self._whole.discard(self._requested)
            self._named.start(frozenset(self._requested), whole=False)
            self._requested.clear()
