"""The last entry of each page of a crawl, in a temporary file: memory does not grow with the crawl."""

from __future__ import annotations

import pickle
import sqlite3
import weakref
from collections.abc import Iterable, Iterator, Mapping, ValuesView
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final

from app.crawl.record.entries import STORED_STATES, UrlEntry

#: Kibibytes of the file that are kept in memory.
_CACHE: Final = 16_384

#: SQLite deletes the file of a database without a name when it is closed (https://sqlite.org/inmemorydb.html).
_TEMPORARY: Final = ""
_SCHEMA: Final = f"""
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -{_CACHE};
CREATE TABLE entries (
    number INTEGER PRIMARY KEY, page_id BLOB UNIQUE, entry BLOB, hash BLOB, url_length INTEGER, url BLOB
);
BEGIN;
"""
_INSERT: Final = """
INSERT INTO entries (page_id, entry, hash, url_length, url) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (page_id) DO UPDATE SET
    entry = excluded.entry, hash = excluded.hash, url_length = excluded.url_length, url = excluded.url
"""
_SAME_HASH: Final = """
SELECT hash, entry FROM entries
WHERE hash IN (SELECT hash FROM entries WHERE hash != x'' GROUP BY hash HAVING count(*) > 1)
ORDER BY hash, url_length, url
"""

_values_of: Final = attrgetter(*(field.name for field in fields(UrlEntry)))
_NAMES: Final = tuple(field.name for field in fields(UrlEntry))


class LatestEntries(Mapping[str, UrlEntry]):
    """The last entry of each page by page id, in the order of their first entries.

    Entries are read from the file each time: two look-ups of one page give equal objects, but not the same one.
    """

    def __init__(self, entries: Iterable[UrlEntry]) -> None:
        """Write the entries to the file. Any thread may read them."""
        #: Whether the crawl has no other entries: no segment of its record is damaged or missing.
        self.is_complete = True
        self._database = sqlite3.connect(_TEMPORARY, isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._database.close)
        self._database.executescript(_SCHEMA)
        self._database.executemany(_INSERT, map(_row, entries))
        self._database.execute("COMMIT")

    def __getitem__(self, page_id: str) -> UrlEntry:
        row = self._database.execute("SELECT entry FROM entries WHERE page_id = ?", (_bytes(page_id),)).fetchone()
        if row is None:
            raise KeyError(page_id)
        return _entry(*row)

    def __iter__(self) -> Iterator[str]:
        return (entry.page_id for entry in self.values())

    def __len__(self) -> int:
        (number,) = self._database.execute("SELECT count(*) FROM entries").fetchone()
        return int(number)

    def values(self) -> ValuesView[UrlEntry]:
        """Return the entries, which are read as they are iterated over."""
        return _Values(self)

    def read(self) -> Iterator[UrlEntry]:
        """Yield the entries in order."""
        for row in self._database.execute("SELECT entry FROM entries ORDER BY number"):
            yield _entry(*row)

    def copies(self) -> Iterator[tuple[UrlEntry, UrlEntry]]:
        """Yield each stored page whose title and text others have, with the one of them that has the shortest URL.

        The entries may be replaced meanwhile.
        """
        former, first = b"", None
        for hashed, data in self._database.execute(_SAME_HASH):
            entry = _entry(data)
            if first is None or hashed != former:
                former, first = hashed, entry
            else:
                yield entry, first

    def replace(self, entry: UrlEntry) -> None:
        """Replace the entry of a page."""
        self._database.execute(_INSERT, _row(entry))


class _Values(ValuesView[UrlEntry]):
    def __init__(self, entries: LatestEntries) -> None:
        super().__init__(entries)
        self._entries = entries

    def __iter__(self) -> Iterator[UrlEntry]:
        return self._entries.read()


def _row(entry: UrlEntry) -> tuple[Any, ...]:
    hashed = _bytes(entry.hash) if entry.state in STORED_STATES else b""
    values = pickle.dumps(_values_of(entry), pickle.HIGHEST_PROTOCOL)
    return _bytes(entry.page_id), values, hashed, len(entry.url), _bytes(entry.url)


def _entry(data: bytes) -> UrlEntry:
    return UrlEntry(**dict(zip(_NAMES, pickle.loads(data), strict=True)))  # noqa: S301 - From this process.


def _bytes(text: str) -> bytes:
    """Return a text for the file: SQLite's own texts have no lone surrogates, which a foreign record may have."""
    return text.encode(errors="surrogatepass")
