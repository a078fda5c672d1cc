"""Count searches and clicks of the sites that want it, in memory, and add the counts to their reports.

No address, session or time of day is kept. A query is kept once it was seen THRESHOLD times on one day.
"""

from __future__ import annotations

import logging
import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import date
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit

from app.crawl.urls import Scope, parse_url
from app.errors import InvalidUrl, ObjectNotFound, StoreError
from app.sites.search_reports import Click, SearchReport, add_to_report, delete_old_reports, today
from app.sites.stored import site_key
from app.storage.open import store_of
from app.storage.store import ObjectStore
from app.text.words import words
from config.settings import Settings

log = logging.getLogger(__name__)

Entry = TypeVar("Entry", str, Click)

#: How often a query, or a click on a page for a query, must be seen on one day before it is kept.
THRESHOLD: Final = 5
#: Queries and clicks of one day that are counted in memory. Beyond that only totals are.
MAX_COUNTED: Final = 20_000
#: Seconds between two additions to the reports, and that the end of the process waits for the last one.
INTERVAL: Final = 60.0
_LAST_SECONDS: Final = 2.0

#: Words and characters of a query that is kept; a longer one is rarely typed twice by chance.
_MAX_WORDS: Final = 8
_MAX_CHARACTERS: Final = 100
_MAX_URL: Final = 2_000
#: Six digits with only spaces between may be a telephone number, and six digits of one word an id.
_LONG_NUMBER: Final = re.compile(r"\d(?: ?\d){5}|\d(?:[^ ]*\d){5}")


def kept_query(text: str) -> str:
    """Return the folded words of a query as reports have them; empty for one that might tell of a person."""
    plain = unquote(unicodedata.normalize("NFKC", text))
    found = words(plain)
    joined = " ".join(found)
    if "@" in plain or len(found) > _MAX_WORDS or len(joined) > _MAX_CHARACTERS or _LONG_NUMBER.search(joined):
        return ""
    return joined


def kept_url(domain: str, text: str) -> str:
    """Return the URL of a page of a site without its fragment; empty for any other, or one that might name a person."""
    try:
        url = parse_url(text).partition("#")[0] if len(text) <= _MAX_URL else ""
        parameters = " ".join(words(unquote(urlsplit(url).query)))
    except (InvalidUrl, ValueError):
        return ""
    if not url or "@" in unquote(url) or _LONG_NUMBER.search(parameters):
        return ""
    return url if Scope(domain, mode="suffix").contains(url) else ""


def search_counter(settings: Settings, counted_sites: Callable[[], Collection[str]]) -> SearchCounter:
    """Return the counter that adds to the reports in the store of the settings."""
    return SearchCounter(store_of(settings), counted_sites)


class SearchCounter:
    """Counts in any thread. A thread of its own adds the counts to the reports, and deletes old reports."""

    def __init__(self, store: ObjectStore, counted_sites: Callable[[], Collection[str]]) -> None:
        """Count for the domains that `counted_sites` returns."""
        self._store = store
        self._counted_sites = counted_sites
        self._seen: dict[tuple[str, date], Counter[str | Click]] = {}
        self._pending: dict[tuple[str, date], SearchReport] = {}
        self._cleaned = date.min
        self._failing = False
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="search-counter", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Add the last counts, and stop; a store that hangs is left."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(_LAST_SECONDS)

    def counted(self, domains: Iterable[str]) -> frozenset[str]:
        """Return those of the domains whose searches and clicks are counted."""
        return frozenset(domains) & frozenset(self._counted_sites())

    def count_search(self, domains: Iterable[str], query: str, *, found: bool) -> None:
        """Count a search of domains; one without results with its query."""
        for domain in self.counted(domains):
            key = domain, today()
            with self._lock:
                pending = self._pending.setdefault(key, SearchReport())
                pending.searches += 1
                pending.without_results += not found
                if not found and (text := kept_query(query)):
                    pending.queries.update(self._seen_often(key, text))

    def count_click(self, domain: str, query: str, url: str) -> None:
        """Count that a page of a domain was opened from the results of a query."""
        if not self.counted([domain]):
            return
        text, page, key = kept_query(query), kept_url(domain, url), (domain, today())
        with self._lock:
            pending = self._pending.setdefault(key, SearchReport())
            pending.clicks += 1
            if text and page:
                pending.clicked.update(self._seen_often(key, (text, page)))

    def add_to_reports(self) -> None:
        """Add what was counted since the last time. While the store fails, the counts stay in memory."""
        now = today()
        with self._lock:
            pending, self._pending = self._pending, {}
            self._seen = {key: seen for key, seen in self._seen.items() if key[1] == now}
        try:
            if self._cleaned != now:
                delete_old_reports(self._store, today=now)
                self._cleaned = now
            while pending:
                (domain, day), counts = next(iter(pending.items()))
                with suppress(ObjectNotFound):  # A removed site is counted until its removal is noticed here.
                    self._store.stat(site_key(domain))
                    add_to_report(self._store, domain, day, counts)
                del pending[domain, day]
            self._failing = False
        except StoreError as error:
            if not self._failing:
                log.warning("Search reports are not written, again in %g s: %s", INTERVAL, error)
            self._failing = True
        with self._lock:
            for key, counts in pending.items():
                self._pending[key] = self._pending.get(key, SearchReport()) + counts

    def _seen_often(self, key: tuple[str, date], entry: Entry) -> dict[Entry, int]:
        """Return what to add for an entry: nothing below THRESHOLD, all at THRESHOLD, and one beyond it."""
        seen = self._seen.setdefault(key, Counter())
        if entry not in seen and sum(map(len, self._seen.values())) >= MAX_COUNTED:
            return {}
        seen[entry] += 1
        if seen[entry] < THRESHOLD:
            return {}
        return {entry: THRESHOLD if seen[entry] == THRESHOLD else 1}

    def _run(self) -> None:
        while not self._stopped.wait(INTERVAL):
            self.add_to_reports()
        self.add_to_reports()
