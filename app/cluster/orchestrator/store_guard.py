"""Decide which missing packs count as deleted: an empty, unmounted or other store must not empty the searchers."""

from __future__ import annotations

import logging
from collections.abc import Set
from dataclasses import replace
from typing import Final

from app.cluster.orchestrator.store_scan import ScanResult

log = logging.getLogger(__name__)

#: Packs that may be deleted whatever their share, so that small installations work.
ALWAYS_DELETABLE: Final = 3


class StoreGuard:
    """Remembers the id of the store that packs came from, and holds back deletions that are not plausible."""

    def __init__(self, *, max_deleted_share: float) -> None:
        """`max_deleted_share` is the share of the known packs that may be deleted, from 0 to 1.

        It is measured from the largest number of packs that this object has seen: several scans delete no more than
        one. Packs of sites that an operator removed do not count. A restart of the orchestrator is the operator's
        consent to the present number.
        """
        self._max_share = max_deleted_share
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
        most = max(ALWAYS_DELETABLE, int(self._max_share * self._largest))
        missing = result.deleted & others
        if missing and self._largest - len(others - missing) > most:
            self._log(
                f"The store lacks {len(missing)} of {len(others)} known packs. Only {most} of {self._largest} may "
                "vanish while the orchestrator runs: searchers keep them. If they were deleted on purpose, restart the "
                "orchestrator with MAX_DELETED_SHARE=1"
            )
            return replace(result, deleted=result.removed)
        self.store_id, self._logged = result.store_id, ""
        return result

    def _log(self, reason: str) -> None:
        """Log a refusal once, and again when its reason changes."""
        if reason != self._logged:
            log.error("%s", reason)
            self._logged = reason
