"""The contract of an object store: bytes under keys, with ETags and conditional writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from app.errors import InvalidKey, ObjectDamaged

#: Bytes of a key in UTF-8: the limit of S3.
MAX_KEY_BYTES: Final = 1024
#: Bytes of one segment in UTF-8: the limit of most file systems.
MAX_SEGMENT_BYTES: Final = 255
#: Keys of objects that are written and deleted to try a store begin with this.
PROBE_PREFIX: Final = "probe/"
#: Bytes that an XML listing cannot carry, or that end a path early.
CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")
#: Segments that name no file of their own in a folder.
NO_NAMES: Final = frozenset({b"", b".", b".."})


@dataclass(frozen=True, slots=True)
class Stat:
    """An object as listed: its key, opaque ETag, size in bytes and time of the last write (UTC).

    Whatever writes other bytes gives it another version. To list versions may cost less than to list ETags.
    """

    key: str
    etag: str
    size: int
    modified: datetime
    version: str


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object's bytes with the ETag they had when they were read."""

    data: bytes
    etag: str


class ObjectStore(Protocol):
    """Bytes under `/`-separated keys. Every method raises StoreError when the store itself fails."""

    #: Requests at the same time that pay off.
    parallel_requests: int
    #: Called with each damaged object that readers of this store leave out.
    on_damage: Callable[[ObjectDamaged], None] | None

    def create(self) -> bool:
        """Make the bucket or folder. Return whether it was missing until now."""

    def get(self, key: str) -> StoredObject:
        """Return the object; raises ObjectNotFound."""

    def get_part(self, key: str, start: int, size: int) -> bytes:
        """Return `size` bytes of the object from `start` on, fewer where it ends before; raises ObjectNotFound."""

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        """Write the whole object and return its new ETag.

        `if_match` replaces only the object with that ETag; `if_absent` writes only where there is no object. An unmet
        condition raises PreconditionFailed, and nothing is written. Writing the same bytes again changes neither ETag
        nor modification time in a folder store; S3 keeps the ETag only.
        """

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        """Write objects by key, for less than one `put` after the other. After an error, any of them may be written."""

    def stat(self, key: str) -> Stat:
        """Return the object's entry as `list` yields it; raises ObjectNotFound."""

    def list(self, prefix: str) -> Iterator[Stat]:
        """Yield every object whose key begins with `prefix`, in key order, however many there are.

        No listing has what another program left under a name that is no key: `sites/` of a web console, a name with a
        line break.
        """

    def list_versions(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yield key and version of every object whose key begins with `prefix`, in key order."""

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Yield the next segment of the keys that go on after it, each once and in order.

        `prefix` is empty or ends in `/`. One request lists a thousand of them, however many objects they hold.
        """

    def delete(self, key: str, *, if_match: str | None = None) -> None:
        """Remove the object. A missing object is no error.

        `if_match` removes only the object with that ETag; another one raises PreconditionFailed, and stays. An S3
        server that ignores the condition may remove one that was written within the last request.
        """


def check_key(key: str) -> str:
    """Return the key; raises InvalidKey for one that a store cannot hold or that would leave a folder."""
    if fault := fault_of(key):
        raise InvalidKey(f"key {key[:200]!r}: {fault}")
    return key


def fault_of(key: str) -> str:
    """Return why a store cannot hold an object of this key; empty for a valid one."""
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        return "not valid Unicode"
    segments = encoded.split(b"/")
    if len(encoded) > MAX_KEY_BYTES:
        return f"longer than {MAX_KEY_BYTES} bytes"
    if CONTROL.search(encoded):
        return "contains a control character"
    if not NO_NAMES.isdisjoint(segments):
        return "a segment is empty, '.' or '..'"
    return f"a segment is longer than {MAX_SEGMENT_BYTES} bytes" if max(map(len, segments)) > MAX_SEGMENT_BYTES else ""
