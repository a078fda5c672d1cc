"""Removed sites: an object in the store has the time, by which workers drop the messages that are older."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Final

from app.crawl.record.keys import checked_domain
from app.errors import ObjectNotFound
from app.storage.damage import decoded_if_intact, read_intact
from app.storage.reading import parsing
from app.storage.store import ObjectStore, StoredObject
from app.storage.updating import update_object

#: Keys of the times of removal begin with this.
REMOVED_PREFIX: Final = "removed/"
#: Seconds after a removal in which messages without a time count as older: foreign producers give them none.
WITHOUT_TIME: Final = 60


def removed_key(domain: str) -> str:
    """Return the object key of a domain's removal; raises InvalidKey for a name that is no domain."""
    return f"{REMOVED_PREFIX}{checked_domain(domain)}.json"


def note_removed(store: ObjectStore, domain: str, at: int, *, unfinished: bool = False) -> None:
    """Note that a domain is removed with all messages that were published before `at`, in seconds since the epoch.

    The removal is `unfinished` until all of the domain is deleted.
    """
    store.put(removed_key(domain), _noted(at, unfinished=unfinished))


def note_finished(store: ObjectStore, domain: str, at: int) -> None:
    """Note that all of a domain is deleted, unless another removal of it has begun since."""
    unfinished, finished = _noted(at, unfinished=True), _noted(at, unfinished=False)

    def changed(stored: StoredObject | None) -> tuple[None, bytes | None]:
        return None, finished if stored and stored.data == unfinished else None

    update_object(store, removed_key(domain), changed)


def unfinished_removals(store: ObjectStore) -> list[str]:
    """Return the domains whose removal has begun and not ended, in their order."""
    keys = [stat.key for stat in store.list(REMOVED_PREFIX)]
    found = [key for key, (_, is_unfinished) in read_intact(store, keys, _parse) if is_unfinished]
    return sorted(key.removeprefix(REMOVED_PREFIX).removesuffix(".json") for key in found)


def removed_at(store: ObjectStore, domain: str) -> int | None:
    """Return when a domain was removed last, in seconds since the epoch; None for one that was never removed.

    A damaged object counts as a removal when it was written.
    """
    key = removed_key(domain)
    with suppress(ObjectNotFound):
        parsed = decoded_if_intact(store, key, store.get(key), _parse)
        return parsed[0] if parsed else int(store.stat(key).modified.timestamp())
    return None


def _noted(at: int, *, unfinished: bool) -> bytes:
    return json.dumps({"at": at} | ({"unfinished": True} if unfinished else {})).encode()


def _parse(key: str, data: bytes) -> tuple[int, bool]:
    """Return the time of a removal, and whether it is unfinished."""
    del key
    with parsing("the time of a removal", data):
        named = json.loads(data)
        return int(named["at"]), bool(named.get("unfinished"))


def is_removed(store: ObjectStore, domain: str, published: Any, *, now: float) -> bool:
    """Return whether a message of a domain is older than the domain's removal, so that nothing is to be done for it.

    `published` is the message's property `timestamp`, in seconds since the epoch; `now` counts for one without it.
    """
    at = removed_at(store, domain)
    if at is None:
        return False
    return published < at if isinstance(published, int) else now < at + WITHOUT_TIME
