"""Display names of sites, from the site objects in the store, for the search page and the API."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from app.errors import StoreError
from app.sites.stored import list_sites
from app.storage.open import open_store
from app.storage.store import ObjectStore
from config.settings import Settings

log = logging.getLogger(__name__)

#: Seconds for which the names are kept.
KEPT = 60.0


def site_names(settings: Settings) -> SiteNames:
    """Return the display names of the sites in the store of the settings."""
    return SiteNames(open_store(settings.store, endpoint_url=settings.s3_endpoint_url))


class SiteNames:
    """The display names by domain. They are read in a thread of their own, so that no request waits for the store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._names: Mapping[str, str] = {}
        self._read_at = -KEPT
        self._lock = threading.Lock()

    def __call__(self) -> Mapping[str, str]:
        """Return the names that were read last, and read them again if they are old."""
        with self._lock:
            is_old = time.monotonic() - self._read_at >= KEPT
            if is_old:
                self._read_at = time.monotonic()
        if is_old:
            threading.Thread(target=self.read, name="site-names", daemon=True).start()
        return self._names

    def read(self) -> None:
        """Read the names now. While the store fails, the former ones stay."""
        try:
            self._names = {site.domain: site.name for site in list_sites(self._store) if site.name}
        except StoreError as error:
            log.warning("Display names of sites stay as they are: %s", error)
