"""Publish a finished database: its new frames as one object, and then its manifest, in place of the previous one.

The manifest is the pack. Without it, an object of frames is what a killed packer left, and is collected later.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from app.errors import ObjectNotFound, PackCorrupt, PackError, StoreError
from app.pack import database
from app.pack.complete import writer
from app.pack.fetch import read_table, write_database
from app.pack.frames import Frame, FrameTable, compressed, hashes_of, sha256
from app.pack.manifest import Manifest, check_domain, describe_pack, read_manifest
from app.storage.layout import frames_key, frames_prefix, manifest_key
from app.storage.store import ObjectStore

log = logging.getLogger(__name__)

#: Objects whose frames a pack may use, and the share of their bytes that must be used. Beyond, all frames are written
#: into a new object.
MAX_OBJECTS: Final = 64
MIN_USED: Final = 0.5
#: How long an object stays that the present pack does not use. Searchers may still read it, and another packer may be
#: about to write its manifest.
RETENTION: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousPack:
    """The pack that a new one replaces, on condition that the ETag of its manifest is still `etag` (None: no manifest).

    `path` is its database, `table` lists its frames, and `manifest` describes it. An unreadable pack has none of them.
    One of which only the numbers were needed has a manifest only.
    """

    etag: str | None
    generation: int = 0
    pages: int = 0
    crawl_id: str = ""
    manifest: Manifest | None = None
    path: Path | None = None
    table: FrameTable | None = None


def find_previous(store: ObjectStore, domain: str) -> PreviousPack:
    """Return the numbers of the present pack. Without a readable manifest, only its generation is found."""
    try:
        stored = store.get(manifest_key(check_domain(domain)))
    except ObjectNotFound:
        return PreviousPack(etag=None, generation=_last_generation(store, domain))
    try:
        manifest = Manifest.from_json(stored.data)
    except PackCorrupt as error:
        log.warning("%s: rewriting the manifest: %s", domain, error)
        return PreviousPack(etag=stored.etag, generation=_last_generation(store, domain))
    return PreviousPack(
        etag=stored.etag,
        generation=manifest.generation,
        pages=manifest.pages,
        crawl_id=manifest.crawl_id,
        manifest=manifest,
    )


def download_previous(store: ObjectStore, domain: str, target: Path) -> PreviousPack:
    """Return the present pack with its database at `target`, or without it if this release cannot read it.

    What `target` has of it is not fetched.
    """
    previous = find_previous(store, domain)
    if previous.manifest is None:
        target.unlink(missing_ok=True)
        return previous
    try:
        table = read_table(store, previous.manifest)
        write_database(store, previous.manifest, table, target)
        # What a packer wrote has been checked, or made from what was.
        database.check(target, is_intact=True)
        _check_writer(target)
    except (PackCorrupt, ObjectNotFound) as error:
        log.warning("%s: rebuilding the pack from all stored pages: %s", domain, error)
        target.unlink(missing_ok=True)
        return replace(previous, manifest=None)
    return replace(previous, path=target, table=table)


def _last_generation(store: ObjectStore, domain: str) -> int:
    """Return the highest generation of which the store has frames."""
    names = (stat.key.rpartition("/")[2].partition("-")[0] for stat in store.list(frames_prefix(domain)))
    return max((int(number) for number in names if number.isdecimal()), default=0)


def _check_writer(path: Path) -> None:
    meta, _ = database.read_meta(path)
    if meta.get("writer") != writer():
        raise PackCorrupt(f"{path.name}: other code wrote it, so it cannot be updated")


def publish(store: ObjectStore, domain: str, path: Path, previous: PreviousPack) -> Manifest:
    """Write the frames that the store lacks, then the manifest in place of that of `previous`; return the manifest.

    Raises PreconditionFailed when the manifest in the store is no longer that of `previous`.
    """
    name = f"{previous.generation + 1}-{secrets.token_hex(8)}"
    table, frames = new_frames(path, name, previous.table)
    table_data = table.to_bytes()
    store.put(frames_key(domain, name), b"".join([*frames, table_data]), if_absent=True)
    manifest = describe_pack(
        path,
        sha256=sha256(table_data),
        size=table.size,
        own_object=name,
        table_start=sum(map(len, frames)),
        table_size=len(table_data),
    )
    store.put(manifest_key(domain), manifest.to_json(), if_match=previous.etag, if_absent=previous.etag is None)
    try:
        _collect(store, domain, table, datetime.now(UTC) - RETENTION)
    except StoreError as error:
        log.warning("%s: frames that are not used any more stay until the next pack: %s", domain, error)
    return manifest


def new_frames(path: Path, name: str, former: FrameTable | None) -> tuple[FrameTable, Sequence[bytes]]:
    """Return the table of a database, and those of its frames that object `name` is to have."""
    hashes = list(hashes_of(path))
    used = _used(former, hashes) if former else {}
    first = {hashed: number for number, hashed in reversed([*enumerate(hashes)]) if hashed not in used}
    numbers = sorted(first.values())
    frames = list(compressed(path, numbers))
    own, start = {}, 0
    for number, frame in zip(numbers, frames, strict=True):
        own[hashes[number]] = Frame(hashes[number], 0, start, len(frame))
        start += len(frame)
    # Objects are numbered again: some of the former ones are not used any more.
    kept = sorted({frame.number for frame in used.values()})
    renumbered = {number: position for position, number in enumerate(kept, 1)}
    places = own | {hashed: replace(frame, number=renumbered[frame.number]) for hashed, frame in used.items()}
    objects = ((name, start), *(former.objects[number] for number in kept)) if former else ((name, start),)
    return FrameTable(objects, tuple(places[hashed] for hashed in hashes)), frames


def _used(former: FrameTable, hashes: Sequence[str]) -> Mapping[str, Frame]:
    """Return the former frames to use again, by hash: none where their objects have too much that is not used."""
    wanted = set(hashes)
    used = {frame.sha256: frame for frame in former.frames if frame.sha256 in wanted}
    numbers = {frame.number for frame in used.values()}
    stored = sum(former.objects[number][1] for number in numbers)
    is_dense = sum(frame.size for frame in used.values()) >= MIN_USED * stored
    return used if is_dense and len(numbers) < MAX_OBJECTS else {}


def _collect(store: ObjectStore, domain: str, table: FrameTable, oldest: datetime) -> None:
    """Delete the objects of frames that the present pack does not use and that were written before `oldest`."""
    used = {frames_key(domain, name) for name, _ in table.objects}
    for stat in list(store.list(frames_prefix(domain))):
        if stat.key not in used and stat.modified < oldest:
            store.delete(stat.key)


def is_present(store: ObjectStore, manifest: Manifest) -> bool:
    """Return whether the store holds the pack that the manifest describes: no later writer has replaced it."""
    with suppress(PackError):
        return read_manifest(store, manifest.domain) == manifest
    return False
