"""An object store in a folder: plain files, content hashes as ETags, conditional writes between processes.

    <root>/<key>                   the object's bytes
    <root>/.store/etags/<key>      its ETag, and the identity of the file that it was computed from
    <root>/.store/locks/00 .. ff   lock files; a writer holds the one that its key hashes to
    <root>/.store/writing/         files being written, renamed to `<root>/<key>` when they are complete

A process may be killed between any two system calls. Objects appear by rename, so each is complete. An ETag file is
valid only while it names the inode, modification time and size of its object; otherwise the ETag is computed again.
An object is flushed to the disk before it appears, and its folder afterwards. Objects below `unflushed` are not: a
power failure may lose those of the last seconds.

Only `create` makes the folder. Without `.store` it is an empty folder, such as the mount point of a disk that is not
mounted, and every method raises StoreError.
"""

# Every page of a crawl is written here. Path objects would make that slower than strings and `os`.
# ruff: noqa: PTH102, PTH104, PTH108, PTH112, PTH116, PTH120, PTH123

from __future__ import annotations

import builtins
import fcntl
import hashlib
import itertools
import os
import secrets
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from stat import S_ISREG
from typing import Final

from app.errors import InvalidKey, ObjectNotFound, PreconditionFailed, StoreError
from app.storage.store import Stat, StoredObject, check_key

#: First path segment of the store's own files, which are not objects.
RESERVED: Final = ".store"
#: Lock files, one per hash of a key. More of them let more keys be written at once.
LOCKS: Final = 256
#: Seconds after which a temporary file counts as left behind by a killed process.
ABANDONED: Final = 3600.0

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class FolderStore:
    """Objects below one folder. Safe between threads and processes of one machine."""

    def __init__(self, root: Path, *, unflushed: str | None = None) -> None:
        """Open the folder, which need not exist yet; `unflushed` is the prefix of keys whose writes are not flushed."""
        self.root = root.absolute()
        self._unflushed = unflushed
        self._objects = f"{self.root}/"
        self._etags = f"{self.root}/{RESERVED}/etags/"
        self._locks = f"{self.root}/{RESERVED}/locks/"
        self._temporary = f"{self.root}/{RESERVED}/writing/"
        # Names of temporary files are unique by process id (which a fork changes), token and number.
        self._token = secrets.token_hex(6)
        self._numbers = itertools.count()
        with suppress(OSError):  # Without a store, the first use says so.
            self._delete_abandoned_files()

    def __repr__(self) -> str:
        return f"FolderStore({str(self.root)!r})"

    def create(self) -> bool:
        """Make the folder a store. Return whether the store was missing; raises StoreError."""
        was_missing = not os.path.isdir(self._locks)
        try:
            for folder in (self._etags, self._locks, self._temporary):
                self._make_folder(folder)
        except OSError as error:
            raise StoreError(f"folder store {self.root}: {error}") from error
        return was_missing

    def get(self, key: str) -> StoredObject:
        """Return the object; raises ObjectNotFound."""
        with self._read_errors_translated(key):
            data = _read(self._objects + _checked(key))
        return StoredObject(data, _hash(data))

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        """Write the whole object and return its ETag; raises PreconditionFailed. See `ObjectStore.put`."""
        etag = _hash(data)
        with self._write_errors_translated(key), self._locked(_checked(key)):
            try:
                current = self._stat(key).etag
            except (FileNotFoundError, NotADirectoryError):
                current = None
            if if_absent and current is not None:
                raise PreconditionFailed(f"{key}: exists already, with ETag {current}")
            if if_match is not None and current != if_match:
                raise PreconditionFailed(f"{key}: {f'ETag is {current}' if current else 'no object'}, not {if_match}")
            if current != etag:
                flush = self._unflushed is None or not key.startswith(self._unflushed)
                self._write_etag(key, etag, self._write_file(self._objects + key, data, flush=flush))
        return etag

    def stat(self, key: str) -> Stat:
        """Return the object's entry as `list` yields it; raises ObjectNotFound."""
        with self._read_errors_translated(key):
            return self._stat(_checked(key))

    def list(self, prefix: str) -> Iterator[Stat]:
        """Yield every object whose key begins with `prefix`, in key order."""
        folder, slash, name = prefix.rpartition("/")
        if folder:
            check_key(folder)
        self._require_store()
        for key in self._walk(folder + slash, name):
            with suppress(ObjectNotFound), self._read_errors_translated(key):
                yield self._stat(key)

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Yield the next segment of the keys that go on after it. See `ObjectStore.list_folders`."""
        if prefix:
            check_key(prefix.rstrip("/"))
        self._require_store()
        yield from (name.rstrip("/") for name in self._names(prefix, "") if name.endswith("/"))

    def delete(self, key: str) -> None:
        """Remove the object. A missing object is no error."""
        with self._write_errors_translated(key), self._locked(_checked(key)):
            for folder in (self._objects, self._etags):
                with suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(folder + key)

    def _write_etag(self, key: str, etag: str, identity: str) -> None:
        # Never flushed: after a power failure an ETag file that is lost or wrong is written again.
        self._write_file(self._etags + key, f"{etag} {identity}\n".encode(), flush=False)

    def _write_file(self, target: str, data: bytes, *, flush: bool) -> str:
        """Write a temporary file, rename it to `target`, and return its identity."""
        temporary = f"{self._temporary}{os.getpid()}-{self._token}-{next(self._numbers)}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            written = os.write(descriptor, data)
            while written < len(data):
                written += os.write(descriptor, memoryview(data)[written:])
            # The kernel's time stamps have a resolution of milliseconds; two writes within one must differ.
            now = time.time_ns()
            os.utime(descriptor, ns=(now, now))
            identity = _identity(os.fstat(descriptor))
            if flush:
                os.fsync(descriptor)
            folder = os.path.dirname(target)
            try:
                os.rename(temporary, target)
            except FileNotFoundError:
                self._make_folder(folder)
                os.rename(temporary, target)
            if flush:
                _flush_folder(folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        finally:
            os.close(descriptor)
        return identity

    def _stat(self, key: str) -> Stat:
        status = os.stat(self._objects + key)
        if not S_ISREG(status.st_mode):
            raise FileNotFoundError(key)
        try:
            etag, _, identity = _read(self._etags + key).decode().rstrip("\n").partition(" ")
        except (OSError, UnicodeDecodeError):
            identity = ""
        # An ETag file that is missing, or describes another file than this, is invalid.
        if identity != _identity(status):
            etag, status = self._compute_etag(key)
        return Stat(key, etag, status.st_size, EPOCH + timedelta(microseconds=status.st_mtime_ns // 1000))

    def _compute_etag(self, key: str) -> tuple[str, os.stat_result]:
        with open(self._objects + key, "rb") as file:
            status = os.fstat(file.fileno())
            etag = hashlib.file_digest(file, "sha256").hexdigest()
            if os.fstat(file.fileno()).st_mtime_ns != status.st_mtime_ns:
                raise StoreError(f"{key}: another program changed the file in place while it was read")
        # The ETag file names the file that it describes, so a concurrent writer makes it invalid, never wrong.
        with suppress(OSError):
            self._write_etag(key, etag, _identity(status))
        return etag, status

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        # A new descriptor for each use: flock() excludes other descriptors, not threads or forked processes.
        descriptor = os.open(f"{self._locks}{zlib.crc32(key.encode()) % LOCKS:02x}", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _walk(self, folder: str, name: str) -> Iterator[str]:
        """Yield the keys below `folder` (empty, or ending in `/`) whose next segment begins with `name`."""
        for entry_name in self._names(folder, name):
            if entry_name.endswith("/"):
                yield from self._walk(folder + entry_name, "")
            else:
                yield folder + entry_name

    def _names(self, folder: str, name: str) -> builtins.list[str]:
        """Return the names in a folder that begin with `name`, those of folders with a slash, in key order."""
        try:
            with os.scandir(self._objects + folder) as entries:
                # A folder sorts as its name with a slash, which is how the keys below it begin.
                return sorted(
                    entry.name + "/" if entry.is_dir() else entry.name
                    for entry in entries
                    if entry.name.startswith(name) and (folder or entry.name != RESERVED)
                )
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StoreError(f"listing {folder!r}: {error}") from error

    def _make_folder(self, folder: str) -> None:
        """Create a folder with those above it, each flushed into the one that contains it."""
        if os.path.isdir(folder):
            return
        above = os.path.dirname(folder.rstrip("/"))
        self._make_folder(above)
        with suppress(FileExistsError):
            os.mkdir(folder)
        _flush_folder(above)

    def _require_store(self) -> None:
        if not os.path.isdir(self._locks):
            raise StoreError(
                f"{self.root}: no store in this folder (a disk that is not mounted?); "
                "`perennial store create` makes a new one"
            )

    @contextmanager
    def _read_errors_translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            self._require_store()
            raise ObjectNotFound(f"{key}: no such object") from error
        except OSError as error:
            raise StoreError(f"{key}: {error}") from error

    @contextmanager
    def _write_errors_translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
            raise StoreError(f"{key}: in a folder store, a key cannot be a folder of another key") from error
        except OSError as error:
            self._require_store()
            raise StoreError(f"{key}: {error}") from error

    def _delete_abandoned_files(self) -> None:
        oldest = time.time() - ABANDONED
        with os.scandir(self._temporary) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.stat().st_mtime < oldest:
                        os.unlink(entry.path)


def _checked(key: str) -> str:
    check_key(key)
    if key.partition("/")[0] == RESERVED:
        raise InvalidKey(f"key {key!r}: {RESERVED!r} is reserved for the folder store's own files")
    return key


def _flush_folder(folder: str) -> None:
    """Flush a folder's entries to the disk: without it, a power failure may undo a rename (fsync(2))."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _identity(status: os.stat_result) -> str:
    return f"{status.st_ino} {status.st_mtime_ns} {status.st_size}"


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        data = os.read(descriptor, size + 1)
        if len(data) == size:
            return data
        parts = [data]
        while part := os.read(descriptor, 2**24):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)
