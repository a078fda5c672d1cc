"""From a URL to an object store."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

from app.errors import InvalidKey
from app.storage.folder import FolderStore
from app.storage.store import ObjectStore


@lru_cache(maxsize=32)
def open_store(url: str, *, endpoint_url: str | None = None) -> ObjectStore:
    """Return the store at `file:///folder` or `s3://bucket[/prefix]`, the same one for the same arguments.

    `endpoint_url` is that of an S3-compatible server. A folder is created; a bucket is not, nor is it looked for yet.
    Raises InvalidKey for any other URL, StoreError for a folder that cannot be made.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "file" and rest.startswith("/"):
        return FolderStore(Path(unquote(rest)))
    bucket, _, prefix = rest.partition("/")
    if separator and scheme == "s3" and bucket:
        # boto3 takes a third of a second to import; a folder store does without it.
        from app.storage.s3 import S3Store

        return S3Store(bucket, prefix, endpoint_url)
    raise InvalidKey(f"store URL {url!r}: expected file:///folder or s3://bucket[/prefix]")
