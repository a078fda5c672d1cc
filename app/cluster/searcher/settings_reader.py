"""The search settings of sites, read again and again from their objects in the store, and applied to open packs."""

from __future__ import annotations

import logging
import threading
from typing import Final

from app.broker.errors import ApplicationError
from app.cluster.searcher.packs import OpenPacks
from app.crawl.path_rules import PathRules
from app.errors import StoreError
from app.search import meaning
from app.search.search_settings import NO_SETTINGS, SearchSettings, factors_of
from app.search.synonyms import Synonyms, read_rule
from app.sites.site import Site
from app.sites.stored import SITES_PREFIX, list_sites, read_site, site_key
from app.storage.marker import read_marker
from app.storage.store import ObjectStore

log = logging.getLogger(__name__)

#: Seconds between two readings. One listing of the sites, and the sites that have changed, are read each time.
INTERVAL: Final = 20.0
#: Seconds that a searcher waits for the first reading before it answers. It must not wait for a store that hangs.
FIRST_READING: Final = 5.0

_SUFFIX: Final = ".json"
#: In place of the ETag of an object that was not compared with the store's yet.
_OF_LAST_PROCESS: Final = ""


class SearchSettingsReader:
    """Applies the settings of all sites, in a thread. While the store fails, the former ones hold.

    They are kept on the searcher's disk: a searcher that starts without the store must not show a hidden page.
    """

    def __init__(self, store: ObjectStore, packs: OpenPacks, *, kept: ObjectStore, interval: float = INTERVAL) -> None:
        self._store = store
        self._packs = packs
        self._kept = kept
        self._interval = interval
        self._etags: dict[str, str] = {}
        self._failed: dict[str, str | None] = {}
        #: The id of the store that was read first.
        self._store_id = ""
        self._failing = False
        self._stopped = threading.Event()
        self._read_once = threading.Event()
        self._thread = threading.Thread(target=self._run, name="search-settings", daemon=True)

    def start(self) -> None:
        """Apply what was kept and start the thread; return after the first reading, or when that takes too long."""
        try:
            for site in list_sites(self._kept):
                self._packs.apply(site.domain, settings_of(site))
                self._etags[site_key(site.domain)] = _OF_LAST_PROCESS
        except ApplicationError as error:
            log.warning("Search settings that were kept on this disk cannot be read: %s", error)
        self._thread.start()
        if not self._read_once.wait(FIRST_READING):
            log.warning("Search settings of sites are not read yet: no answer of the store in %g s", FIRST_READING)

    def close(self) -> None:
        """Stop reading."""
        self._stopped.set()

    def read(self) -> None:
        """Read what has changed and apply it; raises StoreError, also for another store than the one before.

        An empty store, or another one, must not show the hidden pages of the packs that searchers keep meanwhile. The
        first one that this process reads is believed if it has its marker: the operator started the process with it.
        """
        listed = {stat.key: stat.etag for stat in self._store.list(SITES_PREFIX) if stat.key.endswith(_SUFFIX)}
        store_id = read_marker(self._store)
        if self._store_id not in ("", store_id) or (self._etags.keys() - listed.keys() and not store_id):
            former = self._store_id or "the former one"
            raise StoreError(f"it is another store ({store_id or 'without marker'}, not {former})")
        self._store_id = store_id
        for key in {**self._etags, **listed}:
            # None for a site that was removed.
            etag = listed.get(key)
            if etag == self._etags.get(key):
                continue
            domain = key.removeprefix(SITES_PREFIX).removesuffix(_SUFFIX)
            try:
                site = read_site(self._store, domain)
                settings = settings_of(site) if site else NO_SETTINGS
                self._packs.apply(domain, settings)
                if site and settings != NO_SETTINGS:
                    self._kept.put(key, site.to_json())
                else:
                    self._kept.delete(key)
            except ApplicationError as error:
                # An invalid site, a damaged pack or a full disk must not keep the others from their settings. It is
                # logged once, and read again with the next listing.
                if key not in self._failed or self._failed[key] != etag:
                    log.warning("%s: its search settings are read again with the next listing: %s", domain, error)
                self._failed[key] = etag
                continue
            self._failed.pop(key, None)
            self._etags.pop(key, None)
            if etag is not None:
                self._etags[key] = etag

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


def settings_of(site: Site) -> SearchSettings:
    """Return the settings with which searchers search the pack of a site."""
    by_meaning = site.meaning and meaning.is_installed()
    if site.meaning and not by_meaning:
        log.warning("%s: questions are ranked by words alone: install perennial[meaning]", site.domain)
    return SearchSettings(
        synonyms=Synonyms.of(map(read_rule, site.synonyms)),
        best_bets=tuple(best_bet.rule() for best_bet in site.best_bets),
        hides=PathRules((), site.hidden_paths).excludes if site.hidden_paths else None,
        factors=factors_of(site.field_weights),
        meaning=by_meaning,
    )
