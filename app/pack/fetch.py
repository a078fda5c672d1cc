"""From the store to a checked database file on disk, as a searcher needs it."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from app.errors import DiskFull, ObjectNotFound, PackCorrupt, PackError, PackNotFound
from app.pack import database
from app.pack.frames import read_frames
from app.pack.manifest import Manifest, read_manifest
from app.storage.layout import pack_key
from app.storage.store import ObjectStore

#: Bytes of an uncompressed pack: a limit against crafted files, far above any real site.
MAX_UNCOMPRESSED: Final = 32 * 2**30
#: Reads of pack and manifest. A writer puts the pack first, so a reader in between sees a mismatch and reads again.
ATTEMPTS: Final = 5
#: Seconds between two reads.
PAUSE: Final = 0.2


def fetch_pack(store: ObjectStore, domain: str, folder: Path) -> Path:
    """Download, check and decompress a domain's pack to `folder/<domain>.<generation>.sqlite`. Return that path.

    The file appears complete and checked, or not at all. A file of the same generation is replaced; open connections
    keep the old one. Raises as `fetch_pack_to`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as work:
        path = Path(work, "pack.sqlite")
        manifest = fetch_pack_to(store, domain, path)
        return path.replace(folder / f"{domain}.{manifest.generation}.sqlite")


def fetch_pack_to(
    store: ObjectStore, domain: str, target: Path, *, at_least: int = 0, room: int = MAX_UNCOMPRESSED
) -> Manifest:
    """Download, check and decompress a domain's present pack to `target`. Return its manifest.

    Raises PackNotFound, PackCorrupt (checksum, schema version, structure), InvalidMessage (domain) and StoreError.
    Raises PackError for a generation below `at_least`, for a database of more than `room` bytes, of which nothing is
    written, and for a full disk. After an error `target` may be incomplete.
    """
    manifest, data = _read_consistent(store, domain)
    if manifest.generation < at_least:
        raise PackError(f"{domain}: the store holds generation {manifest.generation}, older than {at_least}")
    if manifest.uncompressed_size > room:
        raise PackError(f"{domain}: {manifest.uncompressed_size} bytes needed, {room} free on this searcher")
    require_space(target.parent, manifest.uncompressed_size)
    decompress(data, target, limit=manifest.uncompressed_size)
    database.check(target)
    return manifest


def _read_consistent(store: ObjectStore, domain: str) -> tuple[Manifest, bytes]:
    """Return the manifest and the compressed pack that it describes; raises PackCorrupt after ATTEMPTS mismatches."""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE)
        manifest = read_manifest(store, domain)
        try:
            data = store.get(pack_key(domain)).data
        except ObjectNotFound as error:
            raise PackNotFound(f"{domain} has a manifest but no pack") from error
        if len(data) == manifest.size and sha256(data) == manifest.sha256:
            return manifest, data
    raise PackCorrupt(
        f"{domain}: the stored pack ({len(data)} bytes, SHA-256 {sha256(data)}) does not match its manifest "
        f"({manifest.size} bytes, SHA-256 {manifest.sha256})"
    )


def decompress(data: bytes, target: Path, *, limit: int = MAX_UNCOMPRESSED) -> None:
    """Write the decompressed pack to `target`; raises PackCorrupt as `read_frames` does."""
    with target.open("wb") as file:
        for content, _ in read_frames(data, limit=limit):
            file.write(content)


def sha256(data: bytes) -> str:
    """Return the SHA-256 of the data in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def require_space(folder: Path, size: int) -> None:
    """Raise DiskFull when the disk of `folder` has less than `size` bytes free, and PackError for a smaller disk."""
    usage = shutil.disk_usage(folder)
    if usage.total < size:
        raise PackError(f"{folder}: {size} bytes needed, and the disk has {usage.total} in all")
    if usage.free < size:
        raise DiskFull(f"{folder}: {size} bytes needed, {usage.free} free")
