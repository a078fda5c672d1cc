"""What the search page shows of sites and counts for them, from the site objects in the store."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping

from app.errors import StoreError
from app.sites.stored import list_sites
from app.storage.open import store_of
from app.storage.store import ObjectStore
from config.settings import Settings

log = logging.getLogger(__name__)

#: Seconds for which the names are kept.
KEPT = 60.0


def site_names(settings: Settings) -> SiteNames:
    """Return the display names of the sites in the store of the settings."""
    return SiteNames(store_of(settings))


class SiteNames:
    """The display names by domain, and the sites with a search report.

    They are read in a thread of their own, so that no request waits for the store.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._names: Mapping[str, str] = {}
        self._counted: Collection[str] = frozenset()
        self._read_at = -KEPT
        self._lock = threading.Lock()

    def __call__(self) -> Mapping[str, str]:
        """Return the names that were read last, and read them again if they are old."""
        self._read_if_old()
        return self._names

    def counted(self) -> Collection[str]:
        """Return the domains whose searches and clicks are counted."""
        self._read_if_old()
        return self._counted

    def _read_if_old(self) -> None:
        with self._lock:
            is_old = time.monotonic() - self._read_at >= KEPT
            if is_old:
                self._read_at = time.monotonic()
        if is_old:
            threading.Thread(target=self.read, name="site-names", daemon=True).start()

    def read(self) -> None:
        """Read the sites now. While the store fails, the former ones stay."""
        try:
            sites = list(list_sites(self._store))
            self._names = {site.domain: site.name for site in sites if site.name}
            self._counted = frozenset(site.domain for site in sites if site.search_report)
        except StoreError as error:
            log.warning("Display names of sites stay as they are: %s", error)
