"""Read many objects in order, decode and parse them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from app.errors import ObjectDamaged, ObjectNotFound
from app.storage.store import ObjectStore, StoredObject

T = TypeVar("T")
#: Makes a value of an object's key and bytes; raises ObjectDamaged.
Decoder = Callable[[str, bytes], T]


def read_objects(store: ObjectStore, keys: Iterable[str]) -> Iterator[tuple[str, StoredObject | None]]:
    """Yield keys with their objects in the order given, None for a missing one, holding few of them in memory.

    Threads read an S3 store; a folder is fastest one by one.
    """
    parallel = getattr(store, "parallel_reads", 1)
    if parallel == 1:
        for key in keys:
            yield key, _get(store, key)
        return
    remaining = iter(keys)
    window: deque[tuple[str, Future[StoredObject | None]]] = deque()
    with ThreadPoolExecutor(parallel) as pool:
        try:
            for key in islice(remaining, 2 * parallel):
                window.append((key, pool.submit(_get, store, key)))
            while window:
                key, future = window.popleft()
                yield key, future.result()
                for following in islice(remaining, 1):
                    window.append((following, pool.submit(_get, store, following)))
        finally:
            for _, future in window:
                future.cancel()


def decoded(key: str, stored: StoredObject, decode: Decoder[T]) -> T:
    """Return what the decoder makes of an object; raises ObjectDamaged, which names the object."""
    try:
        return decode(key, stored.data)
    except ObjectDamaged as error:
        raise ObjectDamaged(f"{key}: {error}", key, stored.etag) from error


@contextmanager
def parsing(kind: str, data: bytes) -> Iterator[None]:
    """Raise ObjectDamaged, which names the kind of the object, for an error of the block about its bytes."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        # Without the cause, which may hold a secret from the wrong field.
        raise ObjectDamaged(f"not {kind}: {error!r}: {data[:80]!r}") from None


def check_version(kind: str, version: Any, newest: int) -> None:
    """Raise ObjectDamaged for the version of a later release, and TypeError for one that is no number."""
    if version > newest:
        raise ObjectDamaged(f"{kind}: version {version!r}; this release reads up to {newest}")


def _get(store: ObjectStore, key: str) -> StoredObject | None:
    try:
        return store.get(key)
    except ObjectNotFound:
        return None
