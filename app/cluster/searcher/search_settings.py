"""The search settings of sites, read again and again from their objects in the store, and applied to open packs."""

from __future__ import annotations

import logging
import threading
from typing import Final

from app.broker.errors import ApplicationError
from app.cluster.searcher.packs import OpenPacks
from app.search.site_settings import NO_SETTINGS
from app.sites.search_fields import search_settings
from app.sites.stored import SITES_PREFIX, read_site
from app.storage.store import ObjectStore

log = logging.getLogger(__name__)

#: Seconds between two readings. One listing of the sites, and the sites that have changed, are read each time.
INTERVAL: Final = 20.0
#: Seconds that a searcher waits for the first reading before it answers. It must not wait for a store that hangs.
FIRST_READING: Final = 5.0

_SUFFIX: Final = ".json"


class SearchSettingsReader:
    """Applies the settings of all sites, in a thread. While the store fails, the former ones hold."""

    def __init__(self, store: ObjectStore, packs: OpenPacks, *, interval: float = INTERVAL) -> None:
        self._store = store
        self._packs = packs
        self._interval = interval
        self._etags: dict[str, str] = {}
        self._failed: dict[str, str] = {}
        self._failing = False
        self._stopped = threading.Event()
        self._read_once = threading.Event()
        self._thread = threading.Thread(target=self._run, name="search-settings", daemon=True)

    def start(self) -> None:
        """Start the thread; return after the first reading, or when that takes too long."""
        self._thread.start()
        if not self._read_once.wait(FIRST_READING):
            log.warning("Search settings of sites are not read yet: no answer of the store in %g s", FIRST_READING)

    def close(self) -> None:
        """Stop reading."""
        self._stopped.set()

    def read(self) -> None:
        """Read what has changed and apply it; raises StoreError."""
        listed = {stat.key: stat.etag for stat in self._store.list(SITES_PREFIX) if stat.key.endswith(_SUFFIX)}
        for key in self._etags.keys() - listed.keys():
            self._packs.apply(_domain(key), NO_SETTINGS)
            del self._etags[key]
        for key, etag in listed.items():
            if self._etags.get(key) != etag:
                self._apply(key, etag)

    def _apply(self, key: str, etag: str) -> None:
        """Apply the settings of one site. After a failure they are read again with the next listing.

        An invalid site or a damaged pack must not keep the others from their settings. It is logged once.
        """
        domain = _domain(key)
        try:
            stored = read_site(self._store, domain)
            self._packs.apply(domain, search_settings(stored.site) if stored else NO_SETTINGS)
        except ApplicationError as error:
            if self._failed.get(key) != etag:
                log.warning("%s: its search settings stay as they are: %s", domain, error)
            self._failed[key] = etag
        else:
            self._etags[key] = etag
            self._failed.pop(key, None)

    def _run(self) -> None:
        while True:
            try:
                self.read()
                self._failing = False
            except Exception as error:  # noqa: BLE001 - After any error, the next reading is tried.
                if not self._failing:
                    log.warning("Search settings of sites stay as they are, again in %g s: %r", self._interval, error)
                self._failing = True
            self._read_once.set()
            if self._stopped.wait(self._interval):
                return


def _domain(key: str) -> str:
    return key.removeprefix(SITES_PREFIX).removesuffix(_SUFFIX)
