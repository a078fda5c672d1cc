"""Proof that a store's conditional writes hold, by trying: some servers take the condition and ignore it."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from app.errors import PreconditionFailed, StoreError
from app.storage.store import ObjectStore

#: Writers that race for one object. Servers that check first and write later let several of them win.
WRITERS: Final = 8

#: No store made this ETag.
WRONG_ETAG: Final = "0" * 32


def probe(store: ObjectStore) -> None:
    """Write, compare and remove one object below `probe/`; raises StoreError that names what does not hold."""
    key = f"probe/{uuid.uuid4()}"
    try:
        etag = store.put(key, b"first", if_absent=True)
        _refuses(store, key, "If-None-Match: * is ignored where there is an object", if_absent=True)
        _refuses(store, key, "If-Match is ignored with another object's ETag", if_match=WRONG_ETAG)
        _one_wins(store, key, etag)
    finally:
        with suppress(StoreError):
            store.delete(key)


def _refuses(store: ObjectStore, key: str, fault: str, *, if_match: str | None = None, if_absent: bool = False) -> None:
    try:
        store.put(key, b"must not be written", if_match=if_match, if_absent=if_absent)
    except PreconditionFailed:
        return
    raise StoreError(f"{store!r}: {fault}; packs would overwrite each other")


def _one_wins(store: ObjectStore, key: str, etag: str) -> None:
    def attempt(writer: int) -> bool:
        try:
            store.put(key, b"writer %d" % writer, if_match=etag)
        except PreconditionFailed:
            return False
        return True

    with ThreadPoolExecutor(WRITERS) as pool:
        won = sum(pool.map(attempt, range(WRITERS)))
    if won != 1:
        raise StoreError(f"{store!r}: of {WRITERS} writers at once with one If-Match, {won} succeeded instead of 1")
