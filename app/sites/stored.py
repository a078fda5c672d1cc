"""Sites in the store: one object each, changed by conditional writes, and the last start of its schedule."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from app.crawl.record.keys import checked_domain
from app.errors import ObjectDamaged, ObjectNotFound, PreconditionFailed
from app.sites.site import Site
from app.storage.damage import decoded_if_intact, read_if_intact, read_intact
from app.storage.reading import decoded, get_if_present, parsing
from app.storage.store import ObjectStore, StoredObject
from app.storage.updating import update_object

#: Keys of sites begin with this, and those of their last starts.
SITES_PREFIX: Final = "sites/"
STARTS_PREFIX: Final = "starts/"


@dataclass(frozen=True, slots=True)
class Start:
    """The last start of a site by its schedule: when, with a time zone, and the id of the crawl, empty if unknown."""

    at: datetime
    crawl_id: str


def site_key(domain: str) -> str:
    """Return the object key of a site; raises InvalidKey for a name that is no domain."""
    return f"{SITES_PREFIX}{checked_domain(domain)}.json"


def start_key(domain: str) -> str:
    """Return the object key of a site's last start."""
    return f"{STARTS_PREFIX}{domain}.json"


def read_site(store: ObjectStore, domain: str) -> Site | None:
    """Return a site, or None for a domain without one; raises StoreError.

    A damaged one raises ObjectDamaged: without it, pages would be requested that its site forbids.
    """
    key = site_key(domain)
    stored = get_if_present(store, key)
    return decoded(key, stored, _parsed) if stored else None


def readable_site(store: ObjectStore, domain: str) -> Site | None:
    """Return a site for a report, None for a damaged one, too, which is noted; raises StoreError."""
    return read_if_intact(store, site_key(domain), _parsed)


def add_site(store: ObjectStore, site: Site) -> None:
    """Write a new site, also in place of a damaged one.

    Raises PreconditionFailed, with nothing written, where the store has a readable one of its domain.
    """
    key = site_key(site.domain)

    def added(stored: StoredObject | None) -> tuple[None, bytes]:
        if decoded_if_intact(store, key, stored, _parsed):
            raise PreconditionFailed(f"{key}: exists already")
        return None, site.to_json()

    update_object(store, key, added)


def update_site(store: ObjectStore, domain: str, change: Callable[[Site | None], Site]) -> Site:
    """Replace a site by what `change` makes of it, None for a missing one, and return the new one.

    `change` may be called again, and nothing is written where it returns an equal site; see `update_object`.
    """
    key = site_key(domain)

    def changed(stored: StoredObject | None) -> tuple[Site, bytes | None]:
        former = decoded(key, stored, _parsed) if stored else None
        site = change(former)
        return site, None if site == former else site.to_json()

    return update_object(store, key, changed)


def list_sites(store: ObjectStore) -> Iterator[Site]:
    """Yield all sites by domain, without damaged ones."""
    for _, site in read_intact(store, [stat.key for stat in store.list(SITES_PREFIX)], _parsed):
        yield site


def read_start(store: ObjectStore, domain: str) -> Start | None:
    """Return the last start of a site by its schedule, or None.

    A damaged one counts as a start of an unknown crawl when it was written. Without it, the next crawl
    would have the time and so the id of the site's first one, which has ended.
    """
    key = start_key(domain)

    def parsed(_: str, data: bytes) -> Start:
        with parsing("the start of a crawl", data):
            named = json.loads(data)
            start = Start(datetime.fromisoformat(named["at"]), str(named["crawl_id"]))
        if start.at.tzinfo is None:
            raise ObjectDamaged("not the start of a crawl: its time has no zone")
        return start

    with suppress(ObjectNotFound):
        return decoded_if_intact(store, key, store.get(key), parsed) or Start(store.stat(key).modified, "")
    return None


def write_start(store: ObjectStore, domain: str, start: Start) -> None:
    """Write the last start of a site by its schedule."""
    named = {"at": start.at.isoformat(), "crawl_id": start.crawl_id}
    store.put(start_key(domain), json.dumps(named, sort_keys=True).encode())


def _parsed(key: str, data: bytes) -> Site:
    site = Site.from_json(data)
    if site_key(site.domain) != key:
        raise ObjectDamaged(f"it is the site {site.domain!r:.200}")
    return site
