"""From the store to a checked database file: what a searcher needs of a pack."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final

from app.errors import ObjectNotFound, PackCorrupt, PackError, PackNotFound
from app.pack import database
from app.pack.compress import decompress, sha256
from app.pack.manifest import Manifest, read_manifest
from app.storage.layout import pack_key
from app.storage.store import ObjectStore

#: A writer puts the pack, then its manifest. A reader that comes between the two looks again this often...
ATTEMPTS: Final = 5
#: ...after so many seconds.
PAUSE: Final = 0.2


def fetch_pack(store: ObjectStore, domain: str, folder: Path) -> Path:
    """Download, check and unpack a domain's pack to `folder/<domain>.<generation>.sqlite`, and return that path.

    The file appears whole and checked or not at all; one of the same generation is replaced, and connections that are
    open on it keep the old one. Raises PackNotFound, PackCorrupt (checksum, schema version, structure), PackError (no
    room on disk), InvalidMessage (domain) and StoreError.
    """
    manifest, data = _read_both(store, domain)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as work:
        unpacked = Path(work, "pack.sqlite")
        _unpack(manifest, data, unpacked)
        return unpacked.replace(folder / f"{domain}.{manifest.generation}.sqlite")


def fetch_version(store: ObjectStore, domain: str, target: Path, *, at_least: int, room: int) -> Manifest:
    """Download, check and unpack a domain's present pack to `target`, and return its manifest.

    Raises as `fetch_pack` does; PackError also where its generation is below `at_least`, or it is larger than `room`
    bytes, of which no more are written. After an error `target` may hold a part.
    """
    manifest, data = _read_both(store, domain)
    if manifest.generation < at_least:
        raise PackError(f"{domain}: the store holds generation {manifest.generation}, older than {at_least}")
    if manifest.uncompressed_size > room:
        raise PackError(f"{domain}: {manifest.uncompressed_size} bytes needed, {room} free on this searcher")
    _unpack(manifest, data, target)
    return manifest


def _unpack(manifest: Manifest, data: bytes, target: Path) -> None:
    decompress(data, target, limit=manifest.uncompressed_size)
    database.check(target)


def _read_both(store: ObjectStore, domain: str) -> tuple[Manifest, bytes]:
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE)
        manifest = read_manifest(store, domain)
        data = _read_pack(store, domain)
        if len(data) == manifest.size and sha256(data) == manifest.sha256:
            return manifest, data
    raise PackCorrupt(
        f"{domain}: the pack of {len(data)} bytes, SHA-256 {sha256(data)}, is not the one of its manifest: "
        f"{manifest.size} bytes, SHA-256 {manifest.sha256}"
    )


def _read_pack(store: ObjectStore, domain: str) -> bytes:
    try:
        return store.get(pack_key(domain)).data
    except ObjectNotFound as error:
        raise PackNotFound(f"{domain} has a manifest but no pack") from error
