"""Pages that a whole crawl did not meet again: tombstones in place of what is stored of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from app.errors import PreconditionFailed
from app.pack.rows import note_gone
from app.pack.source import read_content
from app.storage.layout import Tombstone, content_key, to_json
from app.storage.store import ObjectStore, Stat

#: How late a store may tell a write: S3 cuts times to whole seconds.
COARSE: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Vanished:
    """A stored page to be replaced: its object's key, the ETag it must still have, and what takes its place."""

    key: str
    etag: str
    tombstone: Tombstone


def find_vanished(
    store: ObjectStore,
    domain: str,
    database: sqlite3.Connection,
    listed: Mapping[str, Stat],
    *,
    pages: Collection[str],
    began: datetime | None,
) -> list[Vanished]:
    """Return the stored pages that are not among `pages` and were not written since `began`; none without `began`.

    Tombstones that are met on the way are noted in the database.
    """
    if began is None:
        return []
    older = (stat for name, stat in listed.items() if name not in pages and _written_before(stat, began))
    vanished, gone = [], []
    for found in read_content(store, older):
        if isinstance(found.content, Tombstone):
            gone.append((found.object, found.etag))
        else:
            page = found.content
            tombstone = Tombstone(canonical_key=page.canonical_key, url=page.url, domain=page.domain, why="vanished")
            vanished.append(Vanished(content_key(domain, found.object), listed[found.object].etag, tombstone))
    note_gone(database, gone)
    return vanished


def bury(store: ObjectStore, vanished: Collection[Vanished]) -> int:
    """Replace the pages by tombstones and return how many; one that was written meanwhile lives on."""
    buried = 0
    for page in vanished:
        with suppress(PreconditionFailed):
            store.put(page.key, to_json(page.tombstone), if_match=page.etag)
            buried += 1
    return buried


def _written_before(stat: Stat, moment: datetime) -> bool:
    latest = stat.modified if stat.modified.microsecond else stat.modified + COARSE
    return latest < moment
