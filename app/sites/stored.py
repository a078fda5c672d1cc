"""Sites in the store: one object each, changed by conditional writes, and the last start of its schedule."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from app.errors import InvalidKey, ObjectNotFound, PreconditionFailed, StoreError
from app.sites.site import Site
from app.storage.reading import read_objects
from app.storage.store import ObjectStore

log = logging.getLogger(__name__)

#: Keys of sites begin with this, and those of their last starts.
SITES_PREFIX: Final = "sites/"
STARTS_PREFIX: Final = "starts/"
#: Conditional writes of one change. Each that fails means that another writer succeeded.
ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True)
class StoredSite:
    """A site as it was read, with the ETag of the bytes that were read."""

    site: Site
    etag: str


@dataclass(frozen=True, slots=True)
class Start:
    """The last start of a site by its schedule: when, with a time zone, and the id of the crawl, empty if unknown."""

    at: datetime
    crawl_id: str


def site_key(domain: str) -> str:
    """Return the object key of a site; raises InvalidKey for a name that is no domain."""
    if not domain or "/" in domain:
        raise InvalidKey(f"domain {domain!r}: not a host name with an optional port")
    return f"{SITES_PREFIX}{domain}.json"


def start_key(domain: str) -> str:
    """Return the object key of a site's last start."""
    return f"{STARTS_PREFIX}{domain}.json"


def read_site(store: ObjectStore, domain: str) -> StoredSite | None:
    """Return a site, or None for a domain without one; raises StoreError."""
    key = site_key(domain)
    with suppress(ObjectNotFound):
        stored = store.get(key)
        return StoredSite(_parsed(key, stored.data), stored.etag)
    return None


def write_site(store: ObjectStore, site: Site, *, etag: str | None) -> str:
    """Write a site in place of the version with this ETag, None for a new site, and return its new ETag.

    Raises PreconditionFailed, with nothing written, when the store holds another version.
    """
    return store.put(site_key(site.domain), site.to_json(), if_match=etag, if_absent=etag is None)


def update_site(store: ObjectStore, domain: str, change: Callable[[Site | None], Site]) -> Site:
    """Replace a site by what `change` makes of it, None for a missing one, and return the new one.

    `change` is called again with the present version when another writer was faster. Nothing is written where it
    returns an equal site. Raises PreconditionFailed after ATTEMPTS races, and what `change` raises.
    """
    for _ in range(ATTEMPTS):
        stored = read_site(store, domain)
        changed = change(stored.site if stored else None)
        if stored and changed == stored.site:
            return changed
        with suppress(PreconditionFailed):
            write_site(store, changed, etag=stored.etag if stored else None)
            return changed
    raise PreconditionFailed(f"{site_key(domain)}: other writers changed it during {ATTEMPTS} attempts to write it")


def list_sites(store: ObjectStore) -> Iterator[Site]:
    """Yield all sites by domain. An invalid one is logged and left out."""
    for key, stored in read_objects(store, [stat.key for stat in store.list(SITES_PREFIX)]):
        try:
            if stored is not None:
                yield _parsed(key, stored.data)
        except StoreError as error:
            log.warning("Site ignored: %s", error)


def read_start(store: ObjectStore, domain: str) -> Start | None:
    """Return the last start of a site by its schedule, or None.

    An invalid one is logged, and counts as a start of an unknown crawl when it was written. Without it, the next crawl
    would have the time and so the id of the site's first one, which has ended.
    """
    key = start_key(domain)
    try:
        data, written = store.get(key).data, store.stat(key).modified
    except ObjectNotFound:
        return None
    try:
        return _parsed_start(data)
    except (ValueError, TypeError, KeyError) as error:
        log.warning("%s is not the start of a crawl: the time at which it was written counts: %r", key, error)
        return Start(written, "")


def _parsed_start(data: bytes) -> Start:
    named = json.loads(data)
    start = Start(datetime.fromisoformat(named["at"]), str(named["crawl_id"]))
    if start.at.tzinfo is None:
        raise ValueError("its time has no zone")
    return start


def write_start(store: ObjectStore, domain: str, start: Start) -> None:
    """Write the last start of a site by its schedule."""
    named = {"at": start.at.isoformat(), "crawl_id": start.crawl_id}
    store.put(start_key(domain), json.dumps(named, sort_keys=True).encode())


def _parsed(key: str, data: bytes) -> Site:
    try:
        site = Site.from_json(data)
    except StoreError as error:
        raise StoreError(f"{key}: {error}") from None
    if site_key(site.domain) != key:
        raise StoreError(f"{key}: it is the site {site.domain!r:.200}")
    return site
