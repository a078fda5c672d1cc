"""Looks into the store, in a thread: a listing may take longer than searchers and those who ask can be kept waiting."""

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
    """How the store was asked about packs."""

    #: Returns all that there are; one that cannot be read is left out. Raises StoreError.
    packs: Callable[[], Iterable[Pack]]
    #: Returns that of a domain; raises PackNotFound, PackCorrupt or StoreError.
    pack: Callable[[str], Pack]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """What a look came to. `whole` is false for one at some domains only; `error` says why there is nothing."""

    packs: tuple[Pack, ...] = ()
    gone: frozenset[str] = frozenset()
    whole: bool = False
    error: str = ""


class StoreScan:
    """One look at a time; begun and taken by one thread."""

    def __init__(self, source: PackSource) -> None:
        self._source = source
        self._thread: threading.Thread | None = None
        self._found = ScanResult()
        self._overtaken: set[str] = set()

    @property
    def is_on(self) -> bool:
        """Whether one was begun whose end was not taken yet."""
        return self._thread is not None

    def begin(self, domains: frozenset[str], *, whole: bool) -> None:
        """Look at these domains; with `whole` at all packs, and at those of these domains that are not among them."""
        self._overtaken.clear()
        self._thread = threading.Thread(target=self._run, args=(domains, whole), name="look", daemon=True)
        self._thread.start()

    def overtake(self, domain: str) -> None:
        """Note that something newer is known of a domain than a look that is under way may tell."""
        self._overtaken.add(domain)

    def take(self) -> ScanResult | None:
        """Return what was found once it is over, or None."""
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
            log.exception("The store cannot be looked at")
            self._found = ScanResult(error=repr(error))

    def _look(self, domains: frozenset[str], whole: bool) -> ScanResult:
        packs = list(self._source.packs()) if whole else []
        gone = set()
        for domain in sorted(domains - {pack.domain for pack in packs}):
            try:
                packs.append(self._source.pack(domain))
            except (PackNotFound, InvalidKey, InvalidMessage):
                # What no store can have nobody is to answer for, whoever said that it is held.
                gone.add(domain)
            except PackCorrupt as error:
                # It may be a good one that is held; nothing is done about it until this can be read.
                log.warning("%s: %s", domain, error)
        return ScanResult(packs=tuple(packs), gone=frozenset(gone), whole=whole)
