"""The stored pages and tombstones of a domain as listed, and how a pack differs from them.

The listing of a full pack is in a file: memory does not grow with their number.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from app.errors import ObjectNotFound, PackError
from app.storage.layout import content_key, id_in_key, list_versions
from app.storage.reading import in_parallel
from app.storage.store import ObjectStore, Stat

_SCHEMA: Final = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE listed (
    page_id TEXT PRIMARY KEY, etag TEXT NOT NULL, size INTEGER NOT NULL, modified TEXT NOT NULL,
    version TEXT NOT NULL, is_packed INTEGER NOT NULL
) WITHOUT ROWID;
BEGIN;
"""
#: A folder that is written meanwhile may list a file twice.
_NOTE: Final = "INSERT OR REPLACE INTO listed VALUES (?, ?, ?, ?, ?, ?)"
_STATS: Final = "SELECT page_id, etag, size, modified, version FROM listed WHERE is_packed = ? ORDER BY page_id"
_DIFFERING: Final = """
SELECT found.page_id, found.etag, size, modified, found.version
FROM listing.listed AS found LEFT JOIN stored USING (page_id) WHERE is_packed AND found.etag IS NOT stored.etag
"""
_WITHOUT_OBJECT: Final = """
SELECT page_id FROM pages
WHERE NOT EXISTS (SELECT 1 FROM listing.listed AS found WHERE found.page_id = pages.page_id AND is_packed)
ORDER BY page_id
"""
#: In order of the primary key, which is nearly that of the keys in a store.
_STORED: Final = "SELECT page_id, version FROM stored ORDER BY page_id"
_HAS_ROW: Final = "SELECT 1 FROM pages WHERE page_id = ?"


class Listing:
    """The listed content of a domain, of which those are packed that belong into the pack.

    `count` and `size` are the number of these and their bytes.
    """

    def __init__(self, path: Path, domain: str, stats: Iterable[Stat], is_packed: Callable[[str], bool]) -> None:
        """Write the file at `path`, in place of a former one. `is_packed` says of a page id whether its page is.

        Raises PackError when SQLite fails: the disk may be full.
        """
        self._domain, self._path = domain, path
        path.unlink(missing_ok=True)
        with self._opened() as database:
            database.executescript(_SCHEMA)
            named = ((id_in_key(stat.key), stat) for stat in stats)
            rows = (
                (page_id, stat.etag, stat.size, stat.modified.isoformat(), stat.version, is_packed(page_id))
                for page_id, stat in named
            )
            database.executemany(_NOTE, rows)
            database.execute("COMMIT")
            totals = database.execute("SELECT count(*), coalesce(sum(size), 0) FROM listed WHERE is_packed")
            self.count, self.size = totals.fetchone()

    def stats(self, *, packed: bool) -> Iterator[Stat]:
        """Yield what is packed, or all else, in key order."""
        with self._opened() as database:
            for columns in database.execute(_STATS, (packed,)):
                yield self._stat(*columns)

    def difference(self, database: sqlite3.Connection) -> tuple[list[Stat], list[str]]:
        """Compare what is packed with the rows and the recorded tombstones of a pack, by ETag.

        Return the objects that differ, in key order, and the page ids of rows without an object.
        """
        database.execute("ATTACH ? AS listing", (str(self._path),))
        changed = [self._stat(*columns) for columns in database.execute(_DIFFERING)]
        deleted = [page_id for (page_id,) in database.execute(_WITHOUT_OBJECT)]
        database.execute("DETACH listing")
        return sorted(changed, key=lambda stat: stat.key), deleted

    def _stat(self, page_id: str, etag: str, size: int, modified: str, version: str) -> Stat:
        return Stat(content_key(self._domain, page_id), etag, size, datetime.fromisoformat(modified), version)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._path, isolation_level=None)) as database:
                yield database
        except sqlite3.Error as error:
            raise PackError(f"{self._path.name}: {error}") from error


def difference_of(
    database: sqlite3.Connection, store: ObjectStore, domain: str, page_ids: Iterable[str] | None
) -> tuple[list[Stat], list[str], list[Stat]]:
    """Compare single pages of the store with a pack, by ETag; of all pages (None) those with other versions.

    Return the objects that differ, in key order; the page ids of rows without an object; and the unchanged objects.
    """
    if page_ids is None:
        page_ids = differing_names(database.execute(_STORED), list_versions(store, domain))

    def stat(page_id: str) -> Stat | None:
        with suppress(ObjectNotFound):
            return store.stat(content_key(domain, page_id))
        return None

    changed, unchanged, deleted = list[Stat](), list[Stat](), list[str]()
    ids = sorted(set(page_ids))
    for page_id, found in zip(ids, in_parallel(stat, ids, threads=store.parallel_requests), strict=True):
        if found is None:
            deleted.append(page_id)
        elif database.execute("SELECT etag FROM stored WHERE page_id = ?", (page_id,)).fetchone() == (found.etag,):
            unchanged.append(found)
        else:
            changed.append(found)
    # Of a recorded tombstone no row is left.
    return changed, [each for each in deleted if database.execute(_HAS_ROW, (each,)).fetchone()], unchanged


def differing_names(rows: Iterator[tuple[str, str | None]], listed: Iterable[tuple[str, str]]) -> set[str]:
    """Return the names that two sequences of names and versions, both in order, do not have in common.

    Where one is not in order, some are returned that they have in common.
    """
    differing: set[str] = set()
    row = next(rows, None)
    for name, version in listed:
        while row and row[0] < name:
            differing.add(row[0])
            row = next(rows, None)
        if row != (name, version):
            differing.add(name)
        if row and row[0] == name:
            row = next(rows, None)
    return differing.union(name for name, _ in (*filter(None, [row]), *rows))
