"""Publish a finished database: over the previous pack, if it is still in the store, and then its manifest."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from app.errors import ObjectNotFound, PackCorrupt, PackNotFound
from app.pack import database
from app.pack.complete import writer
from app.pack.fetch import sha256
from app.pack.frames import Frames, compress, hash_of, read_frames
from app.pack.manifest import Manifest, describe_pack, read_manifest
from app.storage.layout import manifest_key, pack_key
from app.storage.store import ObjectStore, StoredObject
from app.storage.updating import update_object

log = logging.getLogger(__name__)

#: Bytes of a database for each byte of its pack, at most, where no manifest describes the pack.
MAX_RATIO: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousPack:
    """The pack that a new one replaces, on condition that its ETag is still `etag` (None: there is no pack).

    `path` is its decompressed database and `manifest` the description made from that. An unreadable pack has neither,
    nor has one of which only the numbers were needed. `manifest_stored` is whether the store holds that manifest, and
    `frames` are those of the compressed pack.
    """

    etag: str | None
    generation: int = 0
    pages: int = 0
    crawl_id: str = ""
    path: Path | None = None
    manifest: Manifest | None = None
    manifest_stored: bool = False
    frames: Frames = field(default_factory=dict)


def find_previous(store: ObjectStore, domain: str, target: Path) -> PreviousPack:
    """Return the numbers of the present pack. Download it to `target` only if its manifest is missing or stale."""
    manifest = _stored_manifest(store, domain)
    try:
        etag = store.stat(pack_key(domain)).etag
    except ObjectNotFound:
        return _without_database(None, manifest)
    if manifest is not None and manifest.etag == etag:
        return _without_database(etag, manifest)
    return download_previous(store, domain, target)


def download_previous(store: ObjectStore, domain: str, target: Path) -> PreviousPack:
    """Return the present pack with its database at `target`, or without it if this release cannot read it."""
    stored_manifest = _stored_manifest(store, domain)
    try:
        stored = store.get(pack_key(domain))
    except ObjectNotFound:
        return _without_database(None, stored_manifest)
    checksum, size = sha256(stored.data), len(stored.data)
    is_described = stored_manifest is not None and stored_manifest.sha256 == checksum
    limit = stored_manifest.uncompressed_size if stored_manifest and is_described else MAX_RATIO * size
    try:
        frames = _unpack(stored.data, target, limit=limit)
        # What a packer wrote has been checked, or made from what was.
        database.check(target, is_intact=is_described)
        if not is_described:
            database.check_index(target)
        _check_writer(target)
        manifest = describe_pack(target, sha256=checksum, size=size, etag=stored.etag)
    except PackCorrupt as error:
        log.warning("%s: rebuilding the pack from all stored pages: %s", domain, error)
        target.unlink(missing_ok=True)
        return _without_database(stored.etag, stored_manifest)
    return PreviousPack(
        etag=stored.etag,
        generation=max(manifest.generation, stored_manifest.generation if stored_manifest else 0),
        pages=manifest.pages,
        crawl_id=manifest.crawl_id,
        path=target,
        manifest=manifest,
        manifest_stored=manifest == stored_manifest,
        frames=frames,
    )


def _unpack(data: bytes, target: Path, *, limit: int) -> Frames:
    """Write the decompressed pack to `target`. Return its frames, which are parts of `data`."""
    frames = {}
    with target.open("wb") as file:
        for content, frame in read_frames(data, limit=limit):
            file.write(content)
            frames[hash_of(content)] = frame
    return frames


def _check_writer(path: Path) -> None:
    meta, _ = database.read_meta(path)
    if meta.get("writer") != writer():
        raise PackCorrupt(f"{path.name}: other code wrote it, so it cannot be updated")


def publish(store: ObjectStore, domain: str, path: Path, previous: PreviousPack) -> Manifest:
    """Write the pack in place of `previous`, then its manifest, and return the manifest.

    Raises PreconditionFailed, with nothing written, when the pack in the store is no longer `previous`.
    """
    data = compress(path, previous.frames)
    etag = store.put(pack_key(domain), data, if_match=previous.etag, if_absent=previous.etag is None)
    manifest = describe_pack(path, sha256=sha256(data), size=len(data), etag=etag)
    write_manifest(store, manifest)
    return manifest


def is_present(store: ObjectStore, manifest: Manifest) -> bool:
    """Return whether the store holds the pack that the manifest describes: no later writer has replaced it."""
    try:
        return store.stat(pack_key(manifest.domain)).etag == manifest.etag
    except ObjectNotFound:
        return False


def write_manifest(store: ObjectStore, manifest: Manifest) -> None:
    """Write the manifest unless the store holds a later generation; raises PreconditionFailed after many races."""

    def newer(stored: StoredObject | None) -> tuple[None, bytes | None]:
        with suppress(PackCorrupt):
            if stored is not None and Manifest.from_json(stored.data).generation > manifest.generation:
                return None, None
        return None, manifest.to_json()

    update_object(store, manifest_key(manifest.domain), newer)


def _without_database(etag: str | None, manifest: Manifest | None) -> PreviousPack:
    if manifest is None:
        return PreviousPack(etag=etag)
    pages = 0 if etag is None else manifest.pages
    return PreviousPack(etag=etag, generation=manifest.generation, pages=pages, crawl_id=manifest.crawl_id)


def _stored_manifest(store: ObjectStore, domain: str) -> Manifest | None:
    try:
        return read_manifest(store, domain)
    except PackNotFound:
        return None
    except PackCorrupt as error:
        log.warning("%s: rewriting the manifest: %s", domain, error)
        return None
