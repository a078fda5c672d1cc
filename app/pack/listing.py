"""The stored pages and tombstones of a domain as listed, in a file: memory does not grow with their number."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from app.errors import ObjectNotFound, PackError
from app.storage.layout import content_key, id_in_key
from app.storage.store import ObjectStore, Stat

_SCHEMA: Final = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE listed (
    object TEXT PRIMARY KEY, etag TEXT NOT NULL, size INTEGER NOT NULL, modified TEXT NOT NULL,
    is_packed INTEGER NOT NULL
) WITHOUT ROWID;
BEGIN;
"""
#: A folder that is written meanwhile may list a file twice.
_NOTE: Final = "INSERT OR REPLACE INTO listed (object, etag, size, modified, is_packed) VALUES (?, ?, ?, ?, ?)"
_TOTALS: Final = "SELECT count(*), coalesce(sum(size), 0) FROM listed WHERE is_packed"
_STATS: Final = "SELECT object, etag, size, modified FROM listed WHERE is_packed = ? ORDER BY object"
#: Of rows: what was listed in place of them, with another ETag or none.
_DIFFERING: Final = """
SELECT pages.object, found.etag, found.size, found.modified
FROM pages LEFT JOIN listing.listed AS found ON found.object = pages.object AND found.is_packed
WHERE found.etag IS NOT pages.etag
"""
_WITHOUT_ROW: Final = """
SELECT object, etag, size, modified FROM listing.listed AS found
WHERE is_packed AND NOT EXISTS (SELECT 1 FROM pages WHERE pages.object = found.object)
"""
_TOMBSTONE: Final = "SELECT etag FROM gone WHERE object = ?"
_ETAGS: Final = "SELECT etag FROM pages WHERE object = ? UNION ALL SELECT etag FROM gone WHERE object = ?"
_HAS_ROW: Final = "SELECT 1 FROM pages WHERE object = ?"
_FORGET_TOMBSTONES: Final = "DELETE FROM gone WHERE object NOT IN (SELECT object FROM listing.listed)"


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
            database.executemany(_NOTE, (_row(stat, is_packed) for stat in stats))
            database.execute("COMMIT")
            self.count, self.size = database.execute(_TOTALS).fetchone()

    def stats(self, *, packed: bool) -> Iterator[Stat]:
        """Yield what is packed, or all else, in key order."""
        with self._opened() as database:
            for columns in database.execute(_STATS, (packed,)):
                yield self._stat(*columns)

    def difference(self, database: sqlite3.Connection) -> tuple[list[Stat], list[str]]:
        """Compare what is packed with the rows and the recorded tombstones of a pack, by ETag.

        Return the objects that differ, in key order, and the page ids of rows without an object.
        """
        with self._attached(database):
            differing = database.execute(_DIFFERING).fetchall()
            without_row = database.execute(_WITHOUT_ROW).fetchall()
        deleted = sorted(page_id for page_id, etag, *_ in differing if etag is None)
        changed = [
            self._stat(page_id, etag, size, modified)
            for page_id, etag, size, modified in (*differing, *without_row)
            if etag is not None and database.execute(_TOMBSTONE, (page_id,)).fetchone() != (etag,)
        ]
        return sorted(changed, key=lambda stat: stat.key), deleted

    def forget_tombstones(self, database: sqlite3.Connection) -> None:
        """Remove the recorded tombstones of a pack that were not listed any more."""
        with self._attached(database):
            database.execute(_FORGET_TOMBSTONES)

    @contextmanager
    def _attached(self, database: sqlite3.Connection) -> Iterator[None]:
        """Let statements of a pack's connection read the file."""
        database.execute("ATTACH ? AS listing", (str(self._path),))
        try:
            yield
        finally:
            database.execute("DETACH listing")

    def _stat(self, page_id: str, etag: str, size: int, modified: str) -> Stat:
        return Stat(content_key(self._domain, page_id), etag, size, datetime.fromisoformat(modified))

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._path, isolation_level=None)) as database:
                yield database
        except sqlite3.Error as error:
            raise PackError(f"{self._path.name}: {error}") from error


def difference_of(
    database: sqlite3.Connection, store: ObjectStore, domain: str, page_ids: Iterable[str]
) -> tuple[list[Stat], list[str]]:
    """Compare single pages of the store with a pack, as `Listing.difference` does."""
    changed: list[Stat] = []
    deleted: list[str] = []
    for page_id in sorted(set(page_ids)):
        etags = database.execute(_ETAGS, (page_id, page_id)).fetchall()
        try:
            stat = store.stat(content_key(domain, page_id))
        except ObjectNotFound:
            deleted.append(page_id)
        else:
            changed += [stat] * ((stat.etag,) not in etags)
    return changed, [page_id for page_id in deleted if database.execute(_HAS_ROW, (page_id,)).fetchone()]


def _row(stat: Stat, is_packed: Callable[[str], bool]) -> tuple[Any, ...]:
    page_id = id_in_key(stat.key)
    return page_id, stat.etag, stat.size, stat.modified.isoformat(), is_packed(page_id)
