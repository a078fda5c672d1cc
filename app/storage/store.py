"""The contract of an object store: bytes under keys, with ETags and conditional writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Stat:
    """What a listing tells of an object: its key, opaque ETag, size in bytes and time of last write (UTC)."""

    key: str
    etag: str
    size: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object's bytes with the ETag they had when they were read."""

    data: bytes
    etag: str


class ObjectStore(Protocol):
    """Bytes under `/`-separated keys. Every method raises StoreError when the store itself fails."""

    def create(self) -> bool:
        """Make the bucket or folder; return whether it was missing until now."""

    def get(self, key: str) -> StoredObject:
        """Return the object; raises ObjectNotFound."""

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        """Write the object whole and return its new ETag.

        With `if_match` only over the object of that ETag, with `if_absent` only where there is none;
        else raises PreconditionFailed and writes nothing. Writing the bytes that are there already changes
        neither ETag nor modification time in the folder store; S3 keeps the ETag only.
        """

    def stat(self, key: str) -> Stat:
        """Return what a listing would tell of one object; raises ObjectNotFound."""

    def list(self, prefix: str) -> Iterator[Stat]:
        """Yield every object whose key begins with `prefix`, in key order, however many there are."""

    def delete(self, key: str) -> None:
        """Remove the object; one that is not there is no error."""
