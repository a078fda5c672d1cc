"""An object store in a folder: plain files, true ETags, conditional writes between processes.

    <root>/<key>                   the object's bytes
    <root>/.store/etags/<key>      its ETag, and which file that was computed from
    <root>/.store/locks/00 .. ff   a writer holds the one that its key hashes to
    <root>/.store/writing/         files being written; replaced into place when they are whole

A process may be killed between any two system calls. Objects appear by rename, so each is whole. An ETag file counts
only while it names the inode, modification time and size of the object beside it; else the ETag is computed again.
Nothing is flushed to the disk itself, so a power cut may cost the writes of its last seconds.
"""

# Every page of a crawl is put here, and paths as objects would make that slower, hence strings and `os`.
# ruff: noqa: PTH103, PTH104, PTH108, PTH116, PTH120, PTH123

from __future__ import annotations

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

#: First segment of everything that is not an object.
RESERVED: Final = ".store"
#: Files that keep writers of one key apart. More of them let more keys be written at once.
LOCKS: Final = 256
#: Seconds after which a temporary file was left by a process that died.
ABANDONED: Final = 3600.0

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class FolderStore:
    """Objects below one folder, which is created if needed. Safe between threads and processes of one machine."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._objects = f"{self.root}/"
        self._etags = f"{self.root}/{RESERVED}/etags/"
        self._locks = f"{self.root}/{RESERVED}/locks/"
        self._writing = f"{self.root}/{RESERVED}/writing/"
        # With the process id, which a fork changes, and a number, this makes the name of a temporary file unique.
        self._token = secrets.token_hex(6)
        self._numbers = itertools.count()
        try:
            for folder in (self._etags, self._locks, self._writing):
                os.makedirs(folder, exist_ok=True)
            self._sweep()
        except OSError as error:
            raise StoreError(f"folder store {self.root}: {error}") from error

    def __repr__(self) -> str:
        return f"FolderStore({str(self.root)!r})"

    def create(self) -> bool:
        """Return False: the folder was made when this was opened."""
        return False

    def get(self, key: str) -> StoredObject:
        """Return the object; raises ObjectNotFound."""
        with _reading(key):
            data = _read(self._objects + _checked(key))
        return StoredObject(data, _hash(data))

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        """Write the object whole and return its ETag; raises PreconditionFailed. See `ObjectStore.put`."""
        etag = _hash(data)
        with _writing(key), self._locked(_checked(key)):
            current = self._current(key)
            _require(key, current, if_match=if_match, if_absent=if_absent)
            if current != etag:
                self._replace(key, data, etag)
        return etag

    def stat(self, key: str) -> Stat:
        """Return what a listing would tell of one object; raises ObjectNotFound."""
        with _reading(key):
            return self._stat(_checked(key))

    def list(self, prefix: str) -> Iterator[Stat]:
        """Yield every object whose key begins with `prefix`, in key order."""
        folder, slash, name = prefix.rpartition("/")
        if folder:
            check_key(folder)
        for key in self._walk(folder + slash, name):
            with suppress(ObjectNotFound), _reading(key):
                yield self._stat(key)

    def delete(self, key: str) -> None:
        """Remove the object; one that is not there is no error."""
        with _writing(key), self._locked(_checked(key)):
            for folder in (self._objects, self._etags):
                with suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(folder + key)

    def _replace(self, key: str, data: bytes, etag: str) -> None:
        self._remember(key, etag, self._place(self._objects + key, data))

    def _remember(self, key: str, etag: str, identity: str) -> None:
        self._place(self._etags + key, f"{etag} {identity}\n".encode())

    def _place(self, target: str, data: bytes) -> str:
        """Put a whole file where `target` says, and return its identity."""
        temporary = f"{self._writing}{os.getpid()}-{self._token}-{next(self._numbers)}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            _write(descriptor, data)
            # The kernel's own time stamps are some milliseconds coarse; two writes within one tick must differ.
            now = time.time_ns()
            os.utime(descriptor, ns=(now, now))
            identity = _identity(os.fstat(descriptor))
            _rename(temporary, target)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        finally:
            os.close(descriptor)
        return identity

    def _current(self, key: str) -> str | None:
        try:
            return self._stat(key).etag
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _stat(self, key: str) -> Stat:
        found = os.stat(self._objects + key)
        if not S_ISREG(found.st_mode):
            raise FileNotFoundError(key)
        etag = self._remembered(key, _identity(found))
        if etag is None:
            etag, found = self._recompute(key)
        return Stat(key, etag, found.st_size, EPOCH + timedelta(microseconds=found.st_mtime_ns // 1000))

    def _remembered(self, key: str, identity: str) -> str | None:
        try:
            etag, _, of = _read(self._etags + key).decode().rstrip("\n").partition(" ")
        except (OSError, UnicodeDecodeError):
            return None
        return etag if of == identity else None

    def _recompute(self, key: str) -> tuple[str, os.stat_result]:
        with open(self._objects + key, "rb") as file:
            found = os.fstat(file.fileno())
            etag = hashlib.file_digest(file, "sha256").hexdigest()
            if os.fstat(file.fileno()).st_mtime_ns != found.st_mtime_ns:
                raise StoreError(f"{key}: written in place while it was read")
        # The ETag file names what it was computed from, so a writer that came between makes it void, not false.
        with suppress(OSError):
            self._remember(key, etag, _identity(found))
        return etag, found

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        # A new descriptor for each use: flock() keeps descriptors apart, not threads or forked processes.
        descriptor = os.open(f"{self._locks}{zlib.crc32(key.encode()) % LOCKS:02x}", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _walk(self, folder: str, name: str) -> Iterator[str]:
        """Yield keys below `folder` (empty, or ending in `/`) whose next segment begins with `name`."""
        try:
            with os.scandir(self._objects + folder) as entries:
                # A folder sorts as its name with a slash, which is how the keys below it begin.
                names = sorted(
                    entry.name + "/" if entry.is_dir() else entry.name
                    for entry in entries
                    if entry.name.startswith(name) and (folder or entry.name != RESERVED)
                )
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise StoreError(f"listing {folder!r}: {error}") from error
        for found in names:
            if found.endswith("/"):
                yield from self._walk(folder + found, "")
            else:
                yield folder + found

    def _sweep(self) -> None:
        oldest = time.time() - ABANDONED
        with os.scandir(self._writing) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.stat().st_mtime < oldest:
                        os.unlink(entry.path)


def _checked(key: str) -> str:
    check_key(key)
    if key.partition("/")[0] == RESERVED:
        raise InvalidKey(f"key {key!r}: {RESERVED!r} is where a folder store keeps its own files")
    return key


def _require(key: str, current: str | None, *, if_match: str | None, if_absent: bool) -> None:
    if if_absent and current is not None:
        raise PreconditionFailed(f"{key}: exists already, with ETag {current}")
    if if_match is not None and current != if_match:
        raise PreconditionFailed(f"{key}: ETag is {current or 'that of no object'}, not {if_match}")


@contextmanager
def _reading(key: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise ObjectNotFound(f"{key}: no such object") from error
    except OSError as error:
        raise StoreError(f"{key}: {error}") from error


@contextmanager
def _writing(key: str) -> Iterator[None]:
    try:
        yield
    except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
        raise StoreError(f"{key}: in a folder, one key cannot be the beginning of another one's path") from error
    except OSError as error:
        raise StoreError(f"{key}: {error}") from error


def _rename(source: str, target: str) -> None:
    try:
        os.rename(source, target)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.rename(source, target)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _identity(found: os.stat_result) -> str:
    return f"{found.st_ino} {found.st_mtime_ns} {found.st_size}"


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


def _write(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, memoryview(data)[written:])
