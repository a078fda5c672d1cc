"""Delete from the store what nothing uses any more, by one rule of age, beside running crawls and packers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from typing import Final

from app.crawl.record.keys import CRAWLS_PREFIX
from app.crawl.record.removed_sites import REMOVED_PREFIX
from app.operations.context import OperatorContext
from app.pack.publish import unused_frames
from app.storage.damage import read_intact
from app.storage.layout import CONTENT_PREFIX, FRAMES_PREFIX, Tombstone, outline_of
from app.storage.store import PROBE_PREFIX, ObjectStore, Stat
from app.storage.updating import delete_unchanged

#: Bytes of an object up to which it is read, to see whether it is a tombstone: two URLs and little else.
_MAX_TOMBSTONE: Final = 2_000
#: Objects that are read, and deleted, at a time.
_BATCH: Final = 1_000


@dataclass(slots=True)
class Collected:
    """The number of objects of one kind that were deleted, or would be, and their bytes together."""

    kind: str
    objects: int = 0
    size: int = 0

    def __str__(self) -> str:
        return f"{self.kind}: {self.objects:,} objects, {self.size:,} bytes"


def collect(ops: OperatorContext, *, days: int, dry_run: bool = False, why: str = "") -> list[Collected]:
    """Delete what nothing uses and was written over `days` days ago; return the kinds of which there was any.

    With `dry_run`, nothing is deleted. What is replaced meanwhile stays.
    """
    oldest = datetime.now(UTC) - timedelta(days=days)
    if dry_run:
        return collect_until(ops.store, oldest, dry_run=True)
    with ops.act("collect", f"objects older than {days} days", why=why) as act:
        collected = collect_until(ops.store, oldest)
        act.result = "; ".join(map(str, collected)) or "there was nothing"
        return collected


def collect_until(store: ObjectStore, oldest: datetime, *, dry_run: bool = False) -> list[Collected]:
    """Delete what nothing uses and was written before `oldest`; see `collect`."""
    totals: dict[str, Collected] = {}
    for kind, found in _unused(store, oldest):
        etags = {stat.key: stat.etag for stat in found}
        deleted = etags.keys() if dry_run else delete_unchanged(store, etags)
        total = totals.setdefault(kind, Collected(kind))
        total.objects += len(deleted)
        total.size += sum(stat.size for stat in found if stat.key in deleted)
    return [total for total in totals.values() if total.objects]


def _unused(store: ObjectStore, oldest: datetime) -> Iterator[tuple[str, list[Stat]]]:
    """Yield what nothing uses, by kind and in batches. A batch may be deleted before the next one is found."""
    for domain, listed in groupby(store.list(FRAMES_PREFIX), lambda stat: stat.key.split("/")[1]):
        yield "frames of no kept generation", unused_frames(store, domain, listed, oldest)
    # A pack removes the row of a page without an object, as that of a tombstone.
    small = (stat for stat in store.list(CONTENT_PREFIX) if stat.modified < oldest and stat.size <= _MAX_TOMBSTONE)
    while batch := {stat.key: stat for stat in islice(small, _BATCH)}:
        contents = read_intact(store, batch, outline_of)
        yield "tombstones", [batch[key] for key, content in contents if isinstance(content, Tombstone)]
    # `crawl.json` is written first and deleted last.
    for _, group in groupby(store.list(CRAWLS_PREFIX), lambda stat: stat.key.split("/")[:3]):
        crawl = list(group)
        if all(stat.modified < oldest and not stat.key.endswith("/crawl.json") for stat in crawl):
            yield "crawls without a record", crawl
    for kind, prefix in (("times of removals", REMOVED_PREFIX), ("probes", PROBE_PREFIX)):
        yield kind, [stat for stat in store.list(prefix) if stat.modified < oldest]
