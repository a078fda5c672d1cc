"""From the store to a database file on disk, as a searcher needs it. Only frames that it lacks are read."""

from __future__ import annotations

import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from app.errors import DiskFull, ObjectNotFound, PackCorrupt, PackError, PackNotFound
from app.pack.frames import (
    FRAME_SIZE,
    MAX_OBJECT,
    MAX_UNCOMPRESSED,
    Frame,
    FrameTable,
    decompressed,
    hashes_of,
    most_bytes_of_table,
    sha256,
)
from app.pack.manifest import Manifest, read_manifest
from app.storage.layout import frames_key
from app.storage.store import ObjectStore

log = logging.getLogger(__name__)

#: Bytes of adjacent frames that are read at once.
READ_SIZE: Final = 8 * 2**20


def download_pack_to(
    store: ObjectStore,
    domain: str,
    target: Path,
    *,
    former: Path | None = None,
    at_least: int = 0,
    room: int = MAX_UNCOMPRESSED,
) -> Manifest:
    """Download and decompress a domain's present pack to `target`, and return its manifest.

    Frames that `former`, another version of the pack, has at the same place are copied from it.

    The caller checks the schema and the structure of the database.

    Raises PackNotFound, PackCorrupt (hash), InvalidMessage (domain) and StoreError.
    Raises PackError for a generation below `at_least`, for a database of more than `room` bytes, of which nothing is
    written, and for a full disk. After an error `target` may be incomplete.
    """
    incomplete = None
    while True:
        manifest = read_manifest(store, domain)
        if manifest.generation < at_least:
            raise PackError(f"{domain}: the store holds generation {manifest.generation}, older than {at_least}")
        if manifest.uncompressed_size > room:
            raise PackError(f"{domain}: {manifest.uncompressed_size} bytes needed, {room} free on this searcher")
        require_space(target.parent, manifest.uncompressed_size)
        if former is not None and incomplete is None:
            _copy(former, target)
        try:
            write_database(store, manifest, read_table(store, manifest), target)
        except ObjectNotFound as error:
            # A packer has deleted what its new generation does not use.
            if manifest == incomplete:
                raise PackNotFound(f"{domain} has a manifest, but not all frames of the pack: {error}") from error
            incomplete = manifest
        else:
            return manifest


def read_table(store: ObjectStore, manifest: Manifest) -> FrameTable:
    """Return the table of a pack's frames; raises ObjectNotFound, PackCorrupt and StoreError."""
    key = frames_key(manifest.domain, manifest.own_object)
    # A store allocates as many bytes as are read, whether or not it has them.
    if manifest.table_start > MAX_OBJECT or manifest.table_size > most_bytes_of_table(manifest.uncompressed_size):
        raise PackCorrupt(
            f"{manifest.domain}: the manifest declares a table of {manifest.table_size} bytes from "
            f"{manifest.table_start} on in {key}, which no packer writes"
        )
    data = store.get_part(key, manifest.table_start, manifest.table_size)
    if sha256(data) != manifest.sha256:
        raise PackCorrupt(f"{manifest.domain}: the stored table of frames in {key} does not match its manifest")
    return FrameTable.from_bytes(data, size=manifest.uncompressed_size)


def write_database(store: ObjectStore, manifest: Manifest, table: FrameTable, target: Path) -> None:
    """Write the frames that `target` does not have in their places yet: a missing file gets all of them.

    Raises ObjectNotFound, PackCorrupt (a frame without the content that the table says), StoreError and OSError.
    """
    target.touch()
    size = manifest.uncompressed_size
    present = list(hashes_of(target, size=size))
    os.truncate(target, size)
    missing: dict[Frame, list[int]] = defaultdict(list)
    for number, frame in enumerate(table.frames):
        if number >= len(present) or present[number] != frame.sha256:
            missing[frame].append(number)
    in_order = sorted(missing, key=lambda each: (each.number, each.start))
    with target.open("r+b") as file:
        for frame, content in _read_frames(store, manifest.domain, table, in_order):
            for number in missing[frame]:
                if len(content) != min(FRAME_SIZE, size - number * FRAME_SIZE):
                    raise PackCorrupt(f"{manifest.domain}: frame {number} has {len(content)} bytes")
                file.seek(number * FRAME_SIZE)
                file.write(content)


def _read_frames(
    store: ObjectStore, domain: str, table: FrameTable, frames: Sequence[Frame]
) -> Iterator[tuple[Frame, bytes]]:
    """Yield frames, which are in order of their places, with their content. Adjacent ones are read at once."""
    runs: list[list[Frame]] = []
    for frame in frames:
        run = runs[-1] if runs else []
        is_next = run and (frame.number, frame.start) == (run[-1].number, run[-1].end)
        if is_next and frame.end - run[0].start <= READ_SIZE:
            run.append(frame)
        else:
            runs.append([frame])
    for run in runs:
        key, start = frames_key(domain, table.objects[run[0].number][0]), run[0].start
        data = memoryview(store.get_part(key, start, run[-1].end - start))
        for frame in run:
            content = decompressed(data[frame.start - start : frame.end - start], limit=FRAME_SIZE)
            if sha256(content) != frame.sha256:
                raise PackCorrupt(f"{domain}: a stored frame in {key} does not match the table of frames")
            yield frame, content


def _copy(former: Path, target: Path) -> None:
    """Copy a file without reading it: file systems with shared blocks copy none. What is not copied is fetched."""
    with suppress(OSError), former.open("rb") as source, target.open("wb") as copy:
        try:
            while os.copy_file_range(source.fileno(), copy.fileno(), 2**30):
                pass
        except OSError:  # The file system cannot, or the disk is full.
            shutil.copyfileobj(source, copy)


def require_space(folder: Path, size: int) -> None:
    """Raise DiskFull when the disk of `folder` has less than `size` bytes free, and PackError for a smaller disk."""
    usage = shutil.disk_usage(folder)
    if usage.total < size:
        raise PackError(f"{folder}: {size} bytes needed, and the disk has {usage.total} in all")
    if usage.free < size:
        raise DiskFull(f"{folder}: {size} bytes needed, {usage.free} free")
