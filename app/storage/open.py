"""Open a store by its URL, and prove that its conditional writes hold."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from app.errors import InvalidKey, PreconditionFailed, StoreError
from app.storage.folder import FolderStore
from app.storage.marker import create_marker
from app.storage.store import PROBE_PREFIX, ObjectStore
from config.checks import store_url
from config.settings import Settings

#: Writers that race for one object. A server that checks first and writes later lets several of them win.
WRITERS: Final = 8

#: An ETag that no store assigns.
WRONG_ETAG: Final = "0" * 32


@lru_cache(maxsize=32)
def open_store(url: str) -> ObjectStore:
    """Return the store at `file:///folder` or `s3://bucket[/prefix][?endpoint=URL]`, the same object for the same URL.

    The endpoint is the address of an S3-compatible server. Nothing is created or contacted: where there is no store,
    its first use raises StoreError. Raises InvalidKey for any other URL.
    """
    try:
        store_url(url)
    except ValueError as error:
        raise InvalidKey(f"store URL: {error}") from error
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        return FolderStore(Path(unquote(rest)))
    place, _, endpoint = rest.partition("?endpoint=")
    bucket, _, prefix = place.partition("/")
    if scheme == "s3":
        # boto3 takes a third of a second to import, and a folder store does not need it.
        from app.storage.s3 import S3Store

        return S3Store(bucket, prefix, endpoint or None)
    raise InvalidKey(f"store URL {url!r}: expected file:///folder or s3://bucket[/prefix][?endpoint=URL]")


def store_of(settings: Settings) -> ObjectStore:
    """Return the store of the settings."""
    return open_store(settings.store)


def create_store(url: str) -> tuple[ObjectStore, bool]:
    """Make the store at a URL with its marker where either is missing. Return it, and whether folder or bucket was.

    Raises InvalidKey and StoreError.
    """
    store = open_store(url)
    was_missing = store.create()
    create_marker(store)
    return store, was_missing


def check_conditional_writes(store: ObjectStore) -> None:
    """Raise StoreError, naming the fault, unless the store honours `if_match` and `if_absent`.

    Some S3 servers accept the conditions and ignore them. The check writes, compares and deletes one object below
    `probe/`.
    """
    key = f"{PROBE_PREFIX}{uuid.uuid4()}"
    try:
        etag = store.put(key, b"first", if_absent=True)
        _require_refusal(store, key, "If-None-Match: * is ignored where there is an object", if_absent=True)
        _require_refusal(store, key, "If-Match is ignored with another object's ETag", if_match=WRONG_ETAG)

        def wins(writer: int) -> bool:
            try:
                store.put(key, b"writer %d" % writer, if_match=etag)
            except PreconditionFailed:
                return False
            return True

        with ThreadPoolExecutor(WRITERS) as pool:
            winners = sum(pool.map(wins, range(WRITERS)))
        if winners != 1:
            raise StoreError(
                f"{store!r}: of {WRITERS} concurrent writers with the same If-Match, {winners} succeeded instead of 1"
            )
    finally:
        with suppress(StoreError):
            store.delete(key)


def _require_refusal(store: ObjectStore, key: str, fault: str, **condition: Any) -> None:
    try:
        store.put(key, b"must not be written", **condition)
    except PreconditionFailed:
        return
    raise StoreError(f"{store!r}: {fault}; packs would overwrite each other")
