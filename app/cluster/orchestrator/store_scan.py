"""Scans of the store for packs, in a thread: a listing may take longer than requests can wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.broker.errors import InvalidMessage
from app.cluster.placement.model import Pack
from app.errors import InvalidKey, PackCorrupt, PackNotFound, StoreError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSource:
    """Functions that read packs from the store."""

    #: Returns all that there are; one that cannot be read is left out. Raises StoreError.
    packs: Callable[[], Iterable[Pack]]
    #: Returns that of a domain; raises PackNotFound, PackCorrupt or StoreError.
    pack: Callable[[str], Pack]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """The result of a scan. `whole` is false for a scan of some domains; `error` is why it failed."""

    packs: tuple[Pack, ...] = ()
    gone: frozenset[str] = frozenset()
    whole: bool = False
    error: str = ""


class StoreScan:
    """One scan at a time, started and collected by the same thread."""

    def __init__(self, source: PackSource) -> None:
        self._source = source
        self._thread: threading.Thread | None = None
        self._found = ScanResult()
        self._overtaken: set[str] = set()

    @property
    def is_on(self) -> bool:
        """Whether a scan was started whose result was not collected yet."""
        return self._thread is not None

    def begin(self, domains: frozenset[str], *, whole: bool) -> None:
        """Scan these domains; with `whole` all packs, and then those of the domains that were not among them."""
        self._overtaken.clear()
        self._thread = threading.Thread(target=self._run, args=(domains, whole), name="look", daemon=True)
        self._thread.start()

    def overtake(self, domain: str) -> None:
        """Discard what the running scan finds of a domain: something newer is known."""
        self._overtaken.add(domain)

    def take(self) -> ScanResult | None:
        """Return the result of a finished scan, or None."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        found = self._found
        return ScanResult(
            packs=tuple(pack for pack in found.packs if pack.domain not in self._overtaken),
            gone=found.gone - self._overtaken,
            whole=found.whole,
            error=found.error,
        )

    def _run(self, domains: frozenset[str], whole: bool) -> None:
        try:
            self._found = self._look(domains, whole)
        except (StoreError, OSError) as error:
            self._found = ScanResult(error=str(error))
        except Exception as error:
            log.exception("Scan of the store failed")
            self._found = ScanResult(error=repr(error))

    def _look(self, domains: frozenset[str], whole: bool) -> ScanResult:
        packs = list(self._source.packs()) if whole else []
        gone = set()
        for domain in sorted(domains - {pack.domain for pack in packs}):
            try:
                packs.append(self._source.pack(domain))
            except (PackNotFound, InvalidKey, InvalidMessage):
                # No store can hold it, so no searcher is to answer for it.
                gone.add(domain)
            except PackCorrupt as error:
                # Searchers may hold a good version: nothing changes until the manifest is readable.
                log.warning("%s: %s", domain, error)
        return ScanResult(packs=tuple(packs), gone=frozenset(gone), whole=whole)
