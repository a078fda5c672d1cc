"""A finished database to the store: the pack, on condition that nobody replaced it meanwhile, then its manifest."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from app.errors import ObjectNotFound, PackCorrupt, PreconditionFailed
from app.pack.compress import compress, sha256
from app.pack.manifest import Manifest, describe_pack
from app.pack.previous import Previous
from app.storage.layout import manifest_key, pack_key
from app.storage.store import ObjectStore

#: Attempts to write a manifest while others write it too. Each lost one means that another writer got through.
ATTEMPTS: Final = 10


def publish(store: ObjectStore, domain: str, path: Path, previous: Previous) -> Manifest:
    """Write the pack over the one it was made to replace, and describe it.

    Raises PreconditionFailed, with nothing written, when the pack in the store is no longer `previous`.
    """
    data = compress(path)
    etag = store.put(pack_key(domain), data, if_match=previous.etag, if_absent=previous.etag is None)
    manifest = describe_pack(path, sha256=sha256(data), size=len(data), etag=etag)
    write_manifest(store, manifest)
    return manifest


def write_manifest(store: ObjectStore, manifest: Manifest) -> None:
    """Write the manifest unless one of a later generation is there; raises PreconditionFailed after many lost races."""
    key = manifest_key(manifest.domain)
    for _ in range(ATTEMPTS):
        etag = None
        with suppress(ObjectNotFound):
            stored = store.get(key)
            if _generation(stored.data) > manifest.generation:
                return
            etag = stored.etag
        with suppress(PreconditionFailed):
            store.put(key, manifest.to_json(), if_match=etag, if_absent=etag is None)
            return
    raise PreconditionFailed(f"{key}: lost {ATTEMPTS} races to write it")


def _generation(data: bytes) -> int:
    try:
        return Manifest.from_json(data).generation
    except PackCorrupt:
        return 0
