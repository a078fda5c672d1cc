"""Read many objects in order, decode and parse them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, TypeVar

from app.errors import ObjectDamaged, ObjectNotFound
from app.storage.store import ObjectStore, StoredObject

A = TypeVar("A")
T = TypeVar("T")
#: Makes a value of an object's key and bytes; raises ObjectDamaged.
Decoder = Callable[[str, bytes], T]


def get_if_present(store: ObjectStore, key: str) -> StoredObject | None:
    """Return the object, or None for a missing one."""
    with suppress(ObjectNotFound):
        return store.get(key)
    return None


def read_objects(store: ObjectStore, keys: Iterable[str]) -> Iterator[tuple[str, StoredObject | None]]:
    """Yield keys with their objects in the order given, None for a missing one, holding few of them in memory.

    Threads read an S3 store; a folder is fastest one by one.
    """

    def read(key: str) -> tuple[str, StoredObject | None]:
        return key, get_if_present(store, key)

    return in_parallel(read, keys, threads=store.parallel_requests)


def in_parallel(function: Callable[[A], T], arguments: Iterable[A], *, threads: int) -> Iterator[T]:
    """Yield what a function returns for each argument, in order, holding few results in memory."""
    if threads == 1:
        yield from map(function, arguments)
        return
    remaining = iter(arguments)
    with ThreadPoolExecutor(threads) as pool:
        window = deque(pool.submit(function, each) for each in islice(remaining, 2 * threads))
        try:
            while window:
                yield window.popleft().result()
                window.extend(pool.submit(function, each) for each in islice(remaining, 1))
        finally:
            for future in window:
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
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        # Without the cause, which may hold a secret from the wrong field. Pydantic's text has lines for each item.
        reason = " ".join(repr(error).split())
        raise ObjectDamaged(f"not {kind}: {reason:.300}: {data[:80]!r}") from None


def check_version(kind: str, version: Any, newest: int) -> None:
    """Raise ObjectDamaged for the version of a later release, and TypeError for one that is no number."""
    if version > newest:
        raise ObjectDamaged(f"{kind}: version {version!r}; this release reads up to {newest}")
