"""Copy a store into another one: a backup, its restore, or a move between a folder and S3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from app.errors import ObjectNotFound, StoreError
from app.storage.layout import CONTENT_PREFIX, FRAMES_PREFIX, MANIFEST_PREFIX
from app.storage.marker import MARKER_KEY, read_marker
from app.storage.reading import in_parallel
from app.storage.store import PROBE_PREFIX, ObjectStore, Stat

#: Objects that are copied at the same time: a request to a distant server is mostly waiting.
_THREADS: Final = 8


@dataclass(frozen=True, slots=True)
class CopyResult:
    """Numbers of objects: those that were written, and those that were not."""

    copied: int
    unchanged: int


def copy_store(source: ObjectStore, target: ObjectStore, *, create: bool = False) -> CopyResult:
    """Write every object of `source` that `target` lacks or has with another ETag. Nothing is deleted.

    The marker is copied first, so an interrupted copy can be repeated, and manifests last, after their packs. With
    `create`, a missing folder or bucket is made. Raises StoreError, also for a source without marker and a target that
    belongs to another store.
    """
    store_id = read_marker(source)
    if not store_id:
        raise StoreError(f"{source!r}: no marker ({MARKER_KEY}): an empty store, or another place; nothing was copied")
    if create:
        target.create()
    target_id = read_marker(target)
    if target_id not in ("", store_id) or (not target_id and next(target.list(""), None) is not None):
        raise StoreError(
            f"{target!r}: it belongs to another store ({target_id or 'without marker'}); copy to an empty one"
        )
    target.put(MARKER_KEY, source.get(MARKER_KEY).data)

    def copy(stat: Stat) -> bool:
        with suppress(ObjectNotFound):
            if target.stat(stat.key).etag == stat.etag:
                return False
        try:
            target.put(stat.key, source.get(stat.key).data)
        except ObjectNotFound:  # It was deleted meanwhile.
            return False
        return True

    frames = set[str]()
    copied = Counter(in_parallel(copy, _objects(source, frames), threads=_THREADS))
    # Listed when every manifest has been read: a packer may have replaced it meanwhile, and used new frames.
    newer = (stat for stat in source.list(FRAMES_PREFIX) if stat.key not in frames)
    copied.update(in_parallel(copy, newer, threads=_THREADS))
    return CopyResult(copied=copied[True], unchanged=copied[False])


def _objects(source: ObjectStore, frames: set[str]) -> Iterator[Stat]:
    """Yield crawl records and whatever else there is, then pages, frames and manifests. Objects of probes are left out.

    A crawl record names pages that were stored before, so it is listed before them; a manifest follows its frames. A
    copy has what they name, although crawls and packers go on. The keys of the frames are added to `frames`.
    """
    for folder in source.list_folders(""):
        if f"{folder}/" not in (CONTENT_PREFIX, FRAMES_PREFIX, MANIFEST_PREFIX, PROBE_PREFIX):
            yield from source.list(f"{folder}/")
    yield from source.list(CONTENT_PREFIX)
    for stat in source.list(FRAMES_PREFIX):
        frames.add(stat.key)
        yield stat
    yield from source.list(MANIFEST_PREFIX)
