"""Which version of a pack was announced: noted beside the pack, so that no version stays unannounced."""

from __future__ import annotations

from app.errors import ObjectNotFound
from app.storage.layout import announcement_key
from app.storage.store import ObjectStore


def is_announced(store: ObjectStore, domain: str, sha256: str) -> bool:
    """Return whether the `update` event of this version was published, and that was noted; raises StoreError."""
    try:
        return store.get(announcement_key(domain)).data == sha256.encode()
    except ObjectNotFound:
        return False


def note_announced(store: ObjectStore, domain: str, sha256: str) -> None:
    """Note that the broker has confirmed the `update` event of this version; raises StoreError."""
    store.put(announcement_key(domain), sha256.encode())
