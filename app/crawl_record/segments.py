"""Segments of a crawl record: compressed objects with the entries of its URLs, each written once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import zstandard

from app.crawl_record.entries import UrlEntry
from app.crawl_record.keys import CrawlRef
from app.crawl_record.latest import LatestEntries
from app.errors import ObjectNotFound, PreconditionFailed, StoreError
from app.storage.reading import read_objects
from app.storage.store import ObjectStore

#: Bytes of the lines of one segment, unless it has one line only. A line with links may have a megabyte.
MAX_SEGMENT: Final = 16 * 2**20
#: Bytes that a segment may decompress to: a limit against damaged and crafted objects.
MAX_UNCOMPRESSED: Final = 4 * MAX_SEGMENT

ZSTD_LEVEL: Final = 6


def append_segment(store: ObjectStore, ref: CrawlRef, offset: int, lines: Sequence[bytes]) -> int:
    """Write entries, as lines without a newline, from number `offset` on. Return how many the segment holds.

    A segment is never replaced: where one exists, a former attempt wrote it, and the number of its entries is returned.
    The lines after those are the next segment's. Raises StoreError.
    """
    kept, size = 0, 0
    for line in lines:
        size += len(line) + 1
        if size > MAX_SEGMENT and kept:
            break
        kept += 1
    if not kept:
        return 0
    key = ref.segment_key(offset)
    try:
        store.put(key, _compressed(lines[:kept]), if_absent=True)
    except PreconditionFailed:
        return len(_lines(key, store.get(key).data))
    return kept


def next_offset(store: ObjectStore, ref: CrawlRef) -> int:
    """Return the number of entries that the segments hold: the offset of the next one."""
    keys = [stat.key for stat in store.list(ref.urls_prefix)]
    return _offset(keys[-1]) + len(_lines(keys[-1], store.get(keys[-1]).data)) if keys else 0


def read_entries(store: ObjectStore, ref: CrawlRef, *, since: int = 0) -> Iterator[UrlEntry]:
    """Yield the entries of a crawl in the order in which they were written, holding few segments in memory.

    With `since`, segments are left out that begin before this number of entries.

    A URL that was fetched several times has several entries. Raises StoreError, which names object and line.
    """
    keys = (stat.key for stat in store.list(ref.urls_prefix) if _offset(stat.key) >= since)
    for key, stored in read_objects(store, keys):
        if stored is None:  # The record was deleted meanwhile.
            continue
        yield from _entries(key, stored.data)


def write_excluded(store: ObjectStore, ref: CrawlRef, entries: Iterable[UrlEntry]) -> None:
    """Write the list of a crawl's excluded URLs in place of the former one."""
    store.put(ref.excluded_key, _compressed([entry.to_line() for entry in entries]))


def read_excluded(store: ObjectStore, ref: CrawlRef) -> list[UrlEntry]:
    """Return the list of a crawl's excluded URLs; empty for a crawl without one. Raises StoreError."""
    try:
        return list(_entries(ref.excluded_key, store.get(ref.excluded_key).data))
    except ObjectNotFound:
        return []


def latest_entries(store: ObjectStore, ref: CrawlRef, *, after: Iterable[UrlEntry] = ()) -> LatestEntries:
    """Return the last entry of each page by page id. `after` are entries that follow those of the segments."""
    return LatestEntries(chain(read_entries(store, ref), after))


def _compressed(lines: Iterable[bytes]) -> bytes:
    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True)
    return compressor.compress(b"".join(line + b"\n" for line in lines))


def _entries(key: str, data: bytes) -> Iterator[UrlEntry]:
    for number, line in enumerate(_lines(key, data), start=1):
        try:
            yield UrlEntry.from_line(line)
        except StoreError as error:
            raise StoreError(f"{key}, line {number}: {error}") from error


def _lines(key: str, data: bytes) -> list[bytes]:
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= MAX_UNCOMPRESSED:
            raise StoreError(f"{key}: {size} bytes after decompression; at most {MAX_UNCOMPRESSED} are read")
        return zstandard.ZstdDecompressor().decompress(data).splitlines()
    except zstandard.ZstdError as error:
        raise StoreError(f"{key}: not a segment of a crawl record: {error}") from error


def _offset(key: str) -> int:
    name = key.rpartition("/")[2].partition(".")[0]
    if not name.isdecimal():
        raise StoreError(f"{key}: not a segment of a crawl record")
    return int(name)
