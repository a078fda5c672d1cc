"""The entries of a crawl record: compressed segments, each written once, and the last entry of each page."""

from __future__ import annotations

import pickle
import sqlite3
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import fields
from itertools import chain, takewhile
from operator import attrgetter, eq
from typing import Any, Final

import zstandard

from app.crawl.record.entries import STORED_STATES, UrlEntry
from app.crawl.record.keys import CrawlRef
from app.errors import ObjectDamaged, PreconditionFailed
from app.storage.damage import note_damaged, read_if_intact
from app.storage.reading import decoded, read_objects
from app.storage.store import ObjectStore

#: Bytes that a segment may decompress to: a limit against damaged and crafted objects. Ours have a few megabytes.
MAX_UNCOMPRESSED: Final = 64 * 2**20

ZSTD_LEVEL: Final = 6

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


def append_segment(store: ObjectStore, ref: CrawlRef, offset: int, lines: Sequence[bytes]) -> tuple[int, int]:
    """Write entries, as lines without a newline, from number `offset` on. Return how many entries the segment holds,
    and how many of the lines are among them.

    A readable segment is never replaced: a former attempt wrote it, with more lines or fewer. After a loss of Redis's
    last writes, others may wait than it holds: these are the next segment's. A damaged one is replaced. Raises
    StoreError.
    """
    if not lines:
        return 0, 0
    key, data = ref.segment_key(offset), _compressed(lines)
    try:
        store.put(key, data, if_absent=True)
    except PreconditionFailed:
        found = store.get(key)
        try:
            stored = decoded(key, found, _lines_of)
            return len(stored), sum(1 for _ in takewhile(bool, map(eq, stored, lines)))
        except ObjectDamaged as error:
            note_damaged(store, error)
            # These lines are those that it had, or more of them.
            store.put(key, data, if_match=found.etag)
    return len(lines), len(lines)


def next_offset(store: ObjectStore, ref: CrawlRef) -> int:
    """Return the number of entries that the segments hold: the offset of the next one.

    A damaged segment counts as one with a single entry, so that the next one has another key.
    """
    keys = _segments(store, ref)
    return _offset(keys[-1]) + len(read_if_intact(store, keys[-1], _lines_of) or b"?") if keys else 0


def read_entries(
    store: ObjectStore, ref: CrawlRef, *, since: int = 0, unread: list[str] | None = None
) -> Iterator[UrlEntry]:
    """Yield the entries of a crawl in the order in which they were written, holding few segments in memory.

    With `since`, segments are left out that begin before this number of entries. The keys of segments that are damaged,
    or that follow a missing one, are added to `unread`: then the crawl has more entries than these.

    A URL that was fetched several times has several entries. Raises StoreError.
    """
    keys = [key for key in _segments(store, ref) if _offset(key) >= since]
    expected = 0
    for key, stored in read_objects(store, keys):
        if stored is None:  # The record was deleted meanwhile.
            continue
        is_whole = bool(since) or _offset(key) <= expected
        try:
            lines = _lines_of(key, stored.data)
            expected = _offset(key) + len(lines)
            for number, line in enumerate(lines, start=1):
                yield _entry(number, line)
        except ObjectDamaged as error:
            note_damaged(store, ObjectDamaged(f"{key}: {error}", key, stored.etag))
            is_whole = False
        if unread is not None and not is_whole:
            unread.append(key)


def write_excluded(store: ObjectStore, ref: CrawlRef, entries: Iterable[UrlEntry]) -> None:
    """Write the list of a crawl's excluded URLs in place of the former one."""
    store.put(ref.excluded_key, _compressed([entry.to_line() for entry in entries]))


def read_excluded(store: ObjectStore, ref: CrawlRef) -> list[UrlEntry]:
    """Return the list of a crawl's excluded URLs; empty for a crawl without one, or with a damaged one."""
    return read_if_intact(store, ref.excluded_key, _entries_of) or []


def latest_entries(store: ObjectStore, ref: CrawlRef, *, after: Iterable[UrlEntry] = ()) -> LatestEntries:
    """Return the last entry of each page by page id. `after` are entries that follow those of the segments."""
    unread: list[str] = []
    entries = LatestEntries(chain(read_entries(store, ref, unread=unread), after))
    entries.is_complete = not unread
    return entries


def _compressed(lines: Iterable[bytes]) -> bytes:
    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True)
    return compressor.compress(b"".join(line + b"\n" for line in lines))


def _segments(store: ObjectStore, ref: CrawlRef) -> list[str]:
    """Return the keys of a crawl's segments in order, without what others stored there."""
    keys = (stat.key for stat in store.list(ref.urls_prefix))
    return [key for key in keys if key.removeprefix(ref.urls_prefix).partition(".")[0].isdecimal()]


def _offset(key: str) -> int:
    return int(key.rpartition("/")[2].partition(".")[0])


def _entries_of(key: str, data: bytes) -> list[UrlEntry]:
    return [_entry(number, line) for number, line in enumerate(_lines_of(key, data), start=1)]


def _entry(number: int, line: bytes) -> UrlEntry:
    try:
        return UrlEntry.from_line(line)
    except ObjectDamaged as error:
        raise ObjectDamaged(f"line {number}: {error}") from error


def _lines_of(key: str, data: bytes) -> list[bytes]:
    del key
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= MAX_UNCOMPRESSED:
            raise ObjectDamaged(f"{size} bytes after decompression; at most {MAX_UNCOMPRESSED} are read")
        return zstandard.ZstdDecompressor().decompress(data).splitlines()
    except zstandard.ZstdError as error:
        raise ObjectDamaged(f"not a segment of a crawl record: {error}") from error


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
        return _unpickled(*row)

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
            yield _unpickled(*row)

    def copies(self) -> Iterator[tuple[UrlEntry, UrlEntry]]:
        """Yield each stored page whose title and text others have, with the one of them that has the shortest URL.

        The entries may be replaced meanwhile.
        """
        former, first = b"", None
        for hashed, data in self._database.execute(_SAME_HASH):
            entry = _unpickled(data)
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


def _unpickled(data: bytes) -> UrlEntry:
    return UrlEntry(**dict(zip(_NAMES, pickle.loads(data), strict=True)))  # noqa: S301 - From this process.


def _bytes(text: str) -> bytes:
    """Return a text for the file: SQLite's own texts have no lone surrogates, which a foreign record may have."""
    return text.encode(errors="surrogatepass")
