"""The pack that a new one will replace."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from app.errors import ObjectNotFound, PackCorrupt, PackNotFound
from app.pack import database
from app.pack.compress import decompress, sha256
from app.pack.manifest import Manifest, describe_pack, read_manifest
from app.storage.layout import pack_key
from app.storage.store import ObjectStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Previous:
    """What is known of the pack in the store; a new one is written on condition that its ETag is still `etag`.

    `etag` is None when there is none. `path` is its unpacked database and `own` what that says of itself: both None
    when there is no sound one, or it was not asked for. `described` says whether the manifest in the store is its own.
    """

    etag: str | None
    generation: int = 0
    pages: int = 0
    crawl_id: str = ""
    path: Path | None = None
    own: Manifest | None = None
    described: bool = False


def look_up(store: ObjectStore, domain: str, target: Path) -> Previous:
    """Return the numbers of the present pack, downloading it to `target` only if its manifest does not tell them."""
    manifest = _manifest(store, domain)
    try:
        etag = store.stat(pack_key(domain)).etag
    except ObjectNotFound:
        return _without_database(None, manifest)
    if manifest is not None and manifest.etag == etag:
        return _without_database(etag, manifest)
    return download(store, domain, target)


def download(store: ObjectStore, domain: str, target: Path) -> Previous:
    """Return the present pack with its database at `target`, or without, if this release cannot read it."""
    manifest = _manifest(store, domain)
    try:
        stored = store.get(pack_key(domain))
    except ObjectNotFound:
        return _without_database(None, manifest)
    try:
        return _opened(stored.data, stored.etag, manifest, target)
    except PackCorrupt as error:
        log.warning("%s: its pack will be built anew: %s", domain, error)
        target.unlink(missing_ok=True)
        return _without_database(stored.etag, manifest)


def _opened(data: bytes, etag: str, manifest: Manifest | None, target: Path) -> Previous:
    decompress(data, target)
    database.check(target)
    database.check_index(target)
    own = describe_pack(target, sha256=sha256(data), size=len(data), etag=etag)
    return Previous(
        etag=etag,
        generation=max(own.generation, manifest.generation if manifest else 0),
        pages=own.pages,
        crawl_id=own.crawl_id,
        path=target,
        own=own,
        described=manifest == own,
    )


def _without_database(etag: str | None, manifest: Manifest | None) -> Previous:
    if manifest is None:
        return Previous(etag=etag)
    pages = 0 if etag is None else manifest.pages
    return Previous(etag=etag, generation=manifest.generation, pages=pages, crawl_id=manifest.crawl_id)


def _manifest(store: ObjectStore, domain: str) -> Manifest | None:
    try:
        return read_manifest(store, domain)
    except PackNotFound:
        return None
    except PackCorrupt as error:
        log.warning("%s: its manifest will be written anew: %s", domain, error)
        return None
