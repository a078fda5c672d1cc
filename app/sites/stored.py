"""Sites in the store: one object each, changed by conditional writes, and the last start of its schedule."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from app.errors import InvalidKey, ObjectDamaged, ObjectNotFound, PreconditionFailed
from app.sites.site import Site
from app.storage.damage import read_readable, readable
from app.storage.reading import decoded
from app.storage.store import ObjectStore

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
    """Return a site, or None for a domain without one; raises StoreError.

    A damaged one raises ObjectDamaged: without it, pages would be requested that its site forbids.
    """
    key = site_key(domain)
    with suppress(ObjectNotFound):
        stored = store.get(key)
        return StoredSite(decoded(key, stored, _parsed), stored.etag)
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
    """Yield all sites by domain, without damaged ones."""
    for _, site in read_readable(store, [stat.key for stat in store.list(SITES_PREFIX)], _parsed):
        yield site


def read_start(store: ObjectStore, domain: str) -> Start | None:
    """Return the last start of a site by its schedule, or None.

    A damaged one counts as a start of an unknown crawl when it was written. Without it, the next crawl
    would have the time and so the id of the site's first one, which has ended.
    """
    key = start_key(domain)
    try:
        stored, written = store.get(key), store.stat(key).modified
    except ObjectNotFound:
        return None
    return readable(store, key, stored, _parsed_start) or Start(written, "")


def _parsed_start(key: str, data: bytes) -> Start:
    del key
    try:
        named = json.loads(data)
        start = Start(datetime.fromisoformat(named["at"]), str(named["crawl_id"]))
    except (ValueError, TypeError, KeyError) as error:
        raise ObjectDamaged(f"not the start of a crawl: {error!r}") from error
    if start.at.tzinfo is None:
        raise ObjectDamaged("not the start of a crawl: its time has no zone")
    return start


def write_start(store: ObjectStore, domain: str, start: Start) -> None:
    """Write the last start of a site by its schedule."""
    named = {"at": start.at.isoformat(), "crawl_id": start.crawl_id}
    store.put(start_key(domain), json.dumps(named, sort_keys=True).encode())


def _parsed(key: str, data: bytes) -> Site:
    site = Site.from_json(data)
    if site_key(site.domain) != key:
        raise ObjectDamaged(f"it is the site {site.domain!r:.200}")
    return site
