"""The marker of a store: an object with the store's id. A store without it is empty, not mounted, or another place."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from typing import Final

from app.errors import PreconditionFailed, StoreError
from app.storage.reading import get_if_present
from app.storage.store import ObjectStore

#: Object key of the marker.
MARKER_KEY: Final = "store.json"


def create_marker(store: ObjectStore) -> str:
    """Write the marker unless the store has one; return the store's id. Raises StoreError."""
    with suppress(PreconditionFailed):
        store.put(MARKER_KEY, json.dumps({"id": str(uuid.uuid4())}).encode(), if_absent=True)
    return read_marker(store)


def read_marker(store: ObjectStore) -> str:
    """Return the store's id, empty without a marker; raises StoreError, also for an invalid marker."""
    stored = get_if_present(store, MARKER_KEY)
    if stored is None:
        return ""
    try:
        return str(json.loads(stored.data)["id"])
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{MARKER_KEY}: not a store's marker: {error!r}: {stored.data[:80]!r}") from error
