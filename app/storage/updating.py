"""Change or delete objects that other processes may change at the same time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from app.errors import PreconditionFailed
from app.storage.reading import get_if_present, in_parallel
from app.storage.store import ObjectStore, StoredObject

T = TypeVar("T")

#: Conditional writes of one change. Each that fails means that another writer succeeded.
ATTEMPTS: Final = 10


def update_object(store: ObjectStore, key: str, change: Callable[[StoredObject | None], tuple[T, bytes | None]]) -> T:
    """Replace an object by the bytes that `change` makes of it, None for a missing one; return its other value.

    `change` is called again with the present object when another writer was faster, so that neither undoes the other.
    Nothing is written where it makes no bytes. Raises what `change` raises,
    and PreconditionFailed after ATTEMPTS races.
    """
    for _ in range(ATTEMPTS):
        stored = get_if_present(store, key)
        value, data = change(stored)
        if data is None:
            return value
        with suppress(PreconditionFailed):
            store.put(key, data, if_match=stored.etag if stored else None, if_absent=stored is None)
            return value
    raise PreconditionFailed(f"{key}: other writers changed it during {ATTEMPTS} attempts to write it")


def delete_unchanged(store: ObjectStore, etags: Mapping[str, str]) -> Collection[str]:
    """Delete objects by key, unless they were replaced since they had these ETags. Return the deleted keys."""

    def delete(key: str) -> str | None:
        with suppress(PreconditionFailed):
            store.delete(key, if_match=etags[key])
            return key
        return None

    return {key for key in in_parallel(delete, etags, threads=store.parallel_requests) if key is not None}
