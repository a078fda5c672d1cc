"""ETags of files: an extended attribute of each file, or where the file system has none, computed once a process.

An ETag is kept with the modification time and the size of the file that it was computed from. It is valid only while
the file has these; otherwise another program changed the file, and its ETag is computed again. A faulty disk changes
bytes and nothing else, so each reader of a file compares them with the ETag.
"""

# ruff: noqa: PTH123

from __future__ import annotations

import hashlib
import os
import struct
from contextlib import suppress
from typing import Final, TypeAlias

from app.errors import StoreError

#: Name of the attribute. Name and value fit into the 88 bytes that an inode of ext4 has for attributes. A longer value
#: would take a block of 4 kB for each file.
ATTRIBUTE: Final = "user.perennial"
#: The SHA-256 hash, the modification time in nanoseconds and the size in bytes.
_VALUE: Final = struct.Struct("<32sqq")

#: Device, inode, modification time and size of a file.
_Identity: TypeAlias = tuple[int, int, int, int]
#: ETags that this process computed, and their number.
_computed: dict[_Identity, str] = {}
_MAX_COMPUTED: Final = 100_000


def hash_of(data: bytes) -> str:
    """Return the ETag of an object with these bytes."""
    return hashlib.sha256(data).hexdigest()


def note_etag(descriptor: int, etag: str, *, modified: int, size: int) -> None:
    """Store the ETag of an open file in its attribute, if the file system has attributes.

    `modified` is the file's modification time in nanoseconds, `size` is in bytes.
    """
    with suppress(OSError):
        os.setxattr(descriptor, ATTRIBUTE, _VALUE.pack(bytes.fromhex(etag), modified, size))


def correct_etag(descriptor: int, etag: str, status: os.stat_result) -> None:
    """Replace the kept ETag of an open file with this status if its bytes, just read, have another one."""
    identity = _identity(status)
    if noted_etag(descriptor, status) not in (None, etag):
        note_etag(descriptor, etag, modified=status.st_mtime_ns, size=status.st_size)
    if _computed.get(identity, etag) != etag:
        _computed[identity] = etag


def noted_etag(file: str | int, status: os.stat_result) -> str | None:
    """Return the ETag in the attribute of a file, by path or descriptor, or None if it is missing or invalid."""
    try:
        etag, modified, size = _VALUE.unpack(os.getxattr(file, ATTRIBUTE))
    except (OSError, struct.error):
        return None
    return str(etag.hex()) if (modified, size) == (status.st_mtime_ns, status.st_size) else None


def computed_etag(path: str) -> tuple[str, os.stat_result]:
    """Return the ETag of a file without a valid attribute, computed from its bytes, and the file's status.

    Raises OSError, and StoreError for a file that was changed meanwhile.
    """
    with open(path, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        identity = _identity(status)
        etag = _computed.get(identity)
        if etag is None:
            etag = hashlib.file_digest(file, "sha256").hexdigest()
            if os.fstat(file.fileno()).st_mtime_ns != status.st_mtime_ns:
                raise StoreError(f"{path}: another program changed the file in place while it was read")
            note_etag(file.fileno(), etag, modified=status.st_mtime_ns, size=status.st_size)
            if len(_computed) >= _MAX_COMPUTED:
                _computed.clear()
            _computed[identity] = etag
    return etag, status


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
