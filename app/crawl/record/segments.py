"""Segments of a crawl record: compressed objects with the entries of its URLs, each written once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, takewhile
from operator import eq
from typing import Final

import zstandard

from app.crawl.record.entries import UrlEntry
from app.crawl.record.keys import CrawlRef
from app.crawl.record.latest import LatestEntries
from app.errors import ObjectDamaged, PreconditionFailed
from app.storage.damage import note_damaged, read_if_intact
from app.storage.reading import decoded, read_objects
from app.storage.store import ObjectStore

#: Bytes that a segment may decompress to: a limit against damaged and crafted objects. Ours have a few megabytes.
MAX_UNCOMPRESSED: Final = 64 * 2**20

ZSTD_LEVEL: Final = 6


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
