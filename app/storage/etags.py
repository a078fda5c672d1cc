"""ETags of files: an extended attribute of each file, or a file of its own where the file system has no attributes.

An ETag is stored with the modification time and the size of the file that it was computed from. It is valid only while
the file has these; otherwise another program changed the file, and its ETag is computed again.
"""

# ruff: noqa: PTH123

from __future__ import annotations

import hashlib
import os
import struct
from contextlib import suppress
from typing import Final

from app.errors import StoreError

#: Name of the attribute. Name and value fit into the 88 bytes that an inode of ext4 has for attributes. A longer value
#: would take a block of 4 kB for each file.
ATTRIBUTE: Final = "user.perennial"
#: The SHA-256 hash, the modification time in nanoseconds and the size in bytes.
_VALUE: Final = struct.Struct("<32sqq")


def hash_of(data: bytes) -> str:
    """Return the ETag of an object with these bytes."""
    return hashlib.sha256(data).hexdigest()


def note_etag(descriptor: int, etag: str, *, modified: int, size: int) -> bool:
    """Store the ETag of an open file in its attribute. Return whether the file system has attributes.

    `modified` is the file's modification time in nanoseconds, `size` is in bytes.
    """
    try:
        os.setxattr(descriptor, ATTRIBUTE, _VALUE.pack(bytes.fromhex(etag), modified, size))
    except OSError:
        return False
    return True


def noted_etag(path: str, status: os.stat_result) -> str | None:
    """Return the ETag in the attribute of a file, or None if it is missing or invalid."""
    try:
        etag, modified, size = _VALUE.unpack(os.getxattr(path, ATTRIBUTE))
    except (OSError, struct.error):
        return None
    return str(etag.hex()) if (modified, size) == (status.st_mtime_ns, status.st_size) else None


def etag_line(etag: str, status: os.stat_result) -> bytes:
    """Return the content of an ETag file. It names the inode, too: the object can be replaced without it."""
    return f"{etag} {_identity(status)}\n".encode()


def etag_in_file(path: str, status: os.stat_result) -> str | None:
    """Return the ETag in an ETag file of an object with this status, or None if it is missing or invalid."""
    try:
        with open(path, "rb", buffering=0) as file:
            etag, _, identity = file.read(1_000).decode().rstrip("\n").partition(" ")
    except (OSError, UnicodeDecodeError):
        return None
    return etag if identity == _identity(status) else None


def computed_etag(path: str) -> tuple[str, os.stat_result, bool]:
    """Return a file's ETag computed from its bytes, its status, and whether its attribute has the ETag now.

    Raises OSError, and StoreError for a file that was changed meanwhile.
    """
    with open(path, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        etag = hashlib.file_digest(file, "sha256").hexdigest()
        if os.fstat(file.fileno()).st_mtime_ns != status.st_mtime_ns:
            raise StoreError(f"{path}: another program changed the file in place while it was read")
        is_noted = False
        with suppress(OSError):
            is_noted = note_etag(file.fileno(), etag, modified=status.st_mtime_ns, size=status.st_size)
    return etag, status, is_noted


def _identity(status: os.stat_result) -> str:
    return f"{status.st_ino} {status.st_mtime_ns} {status.st_size}"
