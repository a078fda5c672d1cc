"""An object store in a folder: plain files, content hashes as ETags, conditional writes between processes.

    <root>/<key>                   the object's bytes, with its ETag as an extended attribute of the file
    <root>/.store/locks/00 .. ff   lock files; a writer that replaces an object holds the one that its key hashes to
    <root>/.store/writing/         files being written, named `<root>/<key>` when they are complete

A process may be killed between any two system calls. A file gets its ETag before it gets its name, so each object is
complete and has the right ETag. A new object is linked to its name, which fails where there is an object. A conditional
write therefore meets other writers only while it holds the lock: it replaces what it has read.

An object is synced to the disk before it gets its name, and its folder afterwards.

Only `create` makes the folder. Without `.store` it is an empty folder, such as the mount point of a disk that is not
mounted, and every method raises StoreError.
"""

# Every page of a crawl is written here. Path objects would make that slower than strings and `os`.
# ruff: noqa: PTH106, PTH108, PTH112, PTH116, PTH120

from __future__ import annotations

import builtins
import errno
import itertools
import os
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from stat import S_ISREG
from typing import Final, TypeVar

from app.errors import InvalidKey, ObjectDamaged, ObjectNotFound, PreconditionFailed, StoreError
from app.storage.disk import FolderSync, locked, make_folder, sync_file, sync_files
from app.storage.etags import computed_etag, correct_etag, hash_of, note_etag, noted_etag
from app.storage.store import Stat, StoredObject, check_key, fault_of

T = TypeVar("T")

#: First path segment of the store's own files, which are not objects.
RESERVED: Final = ".store"
#: Lock files, one per hash of a key. More of them let more keys be written at once.
LOCKS: Final = 256
#: Seconds after which a temporary file counts as left behind by a killed process.
ABANDONED: Final = 3600.0
#: Attempts to name a file. Each that fails means that its folder was missing, or was deleted because it was empty.
NAMINGS: Final = 10
#: Seconds after which the kernel has written a file. A younger one may be that of a writer that was killed before its
#: sync (vm.dirty_expire_centisecs is 30 s by default).
WRITTEN_BACK: Final = 120.0
#: Errors of a file system without hard links.
NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS})

#: Seconds after which one use of the disk counts as hung. A large pack may take half a minute to be flushed.
HANG_SECONDS: Final = 60.0
#: Seconds between two checks.
CHECK_INTERVAL: Final = 5.0

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class FolderStore:
    """Objects below one folder. Safe between threads and processes of one machine."""

    parallel_requests = 1

    def __init__(self, root: Path) -> None:
        """Open the folder, which need not exist yet."""
        self.root = root.absolute()
        self._objects = f"{self.root}/"
        self._locks = f"{self.root}/{RESERVED}/locks/"
        self._temporary = f"{self.root}/{RESERVED}/writing/"
        self._folders = FolderSync()
        # Names of temporary files are unique by process id (which a fork changes), token and number.
        self._token = secrets.token_hex(6)
        #: Monotonic seconds when the present use of the disk began, 0 without one. Of several threads, the last one's.
        self.busy_since = 0.0
        self._numbers = itertools.count()
        self.on_damage: Callable[[ObjectDamaged], None] | None = None
        oldest = time.time() - ABANDONED
        # Without a store, the first use says so.
        with suppress(OSError), os.scandir(self._temporary) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.stat().st_mtime < oldest:
                        os.unlink(entry.path)

    def __repr__(self) -> str:
        return f"FolderStore({str(self.root)!r})"

    def create(self) -> bool:
        """Make the folder a store. Return whether the store was missing; raises StoreError."""
        was_missing = not os.path.isdir(self._locks)
        try:
            for folder in (self._locks, self._temporary):
                make_folder(Path(folder))
        except OSError as error:
            raise StoreError(f"folder store {self.root}: {error}") from error
        return was_missing

    def get(self, key: str) -> StoredObject:
        """Return the object; raises ObjectNotFound."""
        with self._read_errors_translated(key):
            descriptor = os.open(self._objects + _checked(key), os.O_RDONLY)
            try:
                status = os.fstat(descriptor)
                data = os.read(descriptor, status.st_size + 1)
                if len(data) != status.st_size:
                    data += b"".join(iter(lambda: os.read(descriptor, 2**24), b""))
                etag = hash_of(data)
                correct_etag(descriptor, etag, status)
                return StoredObject(data, etag)
            finally:
                os.close(descriptor)

    def get_part(self, key: str, start: int, size: int) -> bytes:
        """Return a part of the object; raises ObjectNotFound. See `ObjectStore.get_part`."""
        with self._read_errors_translated(key), Path(self._objects + _checked(key)).open("rb") as file:
            file.seek(start)
            return file.read(size)

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        """Write the whole object and return its ETag; raises PreconditionFailed. See `ObjectStore.put`."""
        etag = hash_of(data)
        with self._write_errors_translated(key):
            present = self._present(_checked(key))
            if present is None and if_match is None and not self._create({key: (data, etag)}):
                return etag
            if if_absent:
                raise PreconditionFailed(f"{key}: exists already")
            if if_match is None and present is not None and present.etag == etag:
                # Its writer may have been killed before the sync.
                if time.time() - present.modified.timestamp() <= WRITTEN_BACK:
                    with suppress(FileNotFoundError):  # It was deleted meanwhile.
                        sync_file(self._objects + key)
                        self._folders.sync(os.path.dirname(self._objects + key))
                return etag
            with self._locked(key):
                current = self._present(key)
                if if_match is not None and (current is None or current.etag != if_match):
                    found = f"ETag is {current.etag}" if current else "no object"
                    raise PreconditionFailed(f"{key}: {found}, not {if_match}")
                if current is None or current.etag != etag:
                    with self._written(data, etag) as (descriptor, temporary):
                        os.fsync(descriptor)
                        self._give_name(os.rename, temporary, key)
                        self._folders.sync(os.path.dirname(self._objects + key))
        return etag

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        """Write objects, those of new keys with one wait for the disk. See `ObjectStore.put_all`."""
        with self._write_errors_translated(", ".join(objects)):
            new = {key: (data, hash_of(data)) for key, data in objects.items() if self._present(_checked(key)) is None}
            present = objects.keys() - new.keys() | self._create(new)
        for key in sorted(present):
            self.put(key, objects[key])

    def stat(self, key: str) -> Stat:
        """Return the object's entry as `list` yields it; raises ObjectNotFound."""
        with self._read_errors_translated(key):
            return self._stat(_checked(key))

    def list(self, prefix: str) -> Iterator[Stat]:
        """Yield every object whose key begins with `prefix`, in key order."""
        return self._each(prefix, self._stat)

    def list_versions(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yield key and version of every object whose key begins with `prefix`, in key order."""
        return self._each(prefix, lambda key: (key, _version(self._status(key))))

    def _each(self, prefix: str, read: Callable[[str], T]) -> Iterator[T]:
        """Yield what `read` returns for each key that begins with `prefix`, in key order."""
        folder, slash, name = prefix.rpartition("/")
        if folder:
            check_key(folder)
        self._require_store()
        for key in self._walk(folder + slash, name):
            # One context for each of very many keys would take as long as their entries.
            self.busy_since = time.monotonic()
            try:
                found = read(key)
            except (FileNotFoundError, NotADirectoryError):
                self._require_store()
                continue
            except OSError as error:
                raise StoreError(f"{key}: {error}") from error
            finally:
                self.busy_since = 0.0
            yield found

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Yield the next segment of the keys that go on after it. See `ObjectStore.list_folders`."""
        if prefix:
            check_key(prefix.rstrip("/"))
        self._require_store()
        yield from (name.rstrip("/") for name in self._names(prefix, "") if name.endswith("/"))

    def delete(self, key: str, *, if_match: str | None = None) -> None:
        """Remove the object; raises PreconditionFailed. A missing object is no error. See `ObjectStore.delete`."""
        with self._write_errors_translated(key), self._locked(_checked(key)):
            present = self._present(key) if if_match is not None else None
            if present is not None and present.etag != if_match:
                raise PreconditionFailed(f"{key}: ETag is {present.etag}, not {if_match}")
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(self._objects + key)
            folder = os.path.dirname(key)
            with suppress(OSError):  # One of the key's folders is not empty.
                while folder:
                    os.rmdir(self._objects + folder)
                    folder = os.path.dirname(folder)

    def _create(self, objects: Mapping[str, tuple[bytes, str]]) -> set[str]:
        """Write new objects, bytes with their ETags, synced together. Return the keys that have an object already."""
        with ExitStack() as files:
            written = {key: files.enter_context(self._written(*each)) for key, each in objects.items()}
            sync_files([descriptor for descriptor, _ in written.values()])
            taken = {key for key, (_, temporary) in written.items() if not self._link(temporary, key)}
            for folder in {os.path.dirname(self._objects + key) for key in written.keys() - taken}:
                self._folders.sync(folder)
        return taken

    @contextmanager
    def _written(self, data: bytes, etag: str) -> Iterator[tuple[int, str]]:
        """Write a temporary file with its ETag, for the block; yield its descriptor and path."""
        temporary = f"{self._temporary}{os.getpid()}-{self._token}-{next(self._numbers)}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            written = os.write(descriptor, data)
            while written < len(data):
                written += os.write(descriptor, memoryview(data)[written:])
            # The kernel's time stamps have a resolution of milliseconds. Two writes within one must differ, and a page
            # that is written after a crawl began must not seem older than it.
            now = time.time_ns()
            os.utime(descriptor, ns=(now, now))
            note_etag(descriptor, etag, modified=now, size=len(data))
            yield descriptor, temporary
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            os.close(descriptor)

    def _link(self, temporary: str, key: str) -> bool:
        """Make a temporary file the object of a new key, or return False where there is one."""
        target = self._objects + key
        try:
            self._give_name(os.link, temporary, key)
        except FileExistsError:
            if os.path.isdir(target):
                raise
            return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            with self._locked(key):
                if os.path.lexists(target):
                    return False
                self._give_name(os.rename, temporary, key)
        return True

    def _give_name(self, name: Callable[[str, str], None], temporary: str, key: str) -> None:
        """Link or rename a temporary file, making its folder where it is missing, also where another deletes it."""
        target = self._objects + key
        for _ in range(NAMINGS):
            try:
                return name(temporary, target)
            except FileNotFoundError:
                with suppress(FileNotFoundError):
                    make_folder(Path(target).parent)
        return name(temporary, target)

    def _present(self, key: str) -> Stat | None:
        try:
            return self._stat(key)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _stat(self, key: str) -> Stat:
        path, status = self._objects + key, self._status(key)
        etag = noted_etag(path, status)
        if etag is None:
            etag, status = computed_etag(path)
        modified = EPOCH + timedelta(microseconds=status.st_mtime_ns // 1000)
        return Stat(key, etag, status.st_size, modified, _version(status))

    def _status(self, key: str) -> os.stat_result:
        status = os.stat(self._objects + key)
        if not S_ISREG(status.st_mode):
            raise FileNotFoundError(key)
        return status

    def _locked(self, key: str) -> AbstractContextManager[None]:
        return locked(f"{self._locks}{zlib.crc32(key.encode()) % LOCKS:02x}")

    def _walk(self, folder: str, name: str) -> Iterator[str]:
        """Yield the keys below `folder` (empty, or ending in `/`) whose next segment begins with `name`."""
        for entry_name in self._names(folder, name):
            if entry_name.endswith("/"):
                yield from self._walk(folder + entry_name, "")
            else:
                yield folder + entry_name

    def _names(self, folder: str, name: str) -> builtins.list[str]:
        """Return the names in a folder that begin with `name`, those of folders with a slash, in key order."""
        self.busy_since = time.monotonic()
        try:
            with os.scandir(self._objects + folder) as entries:
                # A folder sorts as its name with a slash, which is how the keys below it begin.
                return sorted(
                    entry.name + "/" if entry.is_dir() else entry.name
                    for entry in entries
                    if entry.name.startswith(name) and (folder or entry.name != RESERVED) and not fault_of(entry.name)
                )
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StoreError(f"listing {folder!r}: {error}") from error
        finally:
            self.busy_since = 0.0

    def _require_store(self) -> None:
        if not os.path.isdir(self._locks):
            raise StoreError(
                f"{self.root}: no store in this folder (a disk that is not mounted?); "
                "`perennial store create` makes a new one"
            )

    @contextmanager
    def _read_errors_translated(self, key: str) -> Iterator[None]:
        self.busy_since = time.monotonic()
        try:
            yield
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            self._require_store()
            raise ObjectNotFound(f"{key}: no such object") from error
        except OSError as error:
            raise StoreError(f"{key}: {error}") from error
        finally:
            self.busy_since = 0.0

    @contextmanager
    def _write_errors_translated(self, key: str) -> Iterator[None]:
        self.busy_since = time.monotonic()
        try:
            yield
        except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
            raise StoreError(f"{key}: in a folder store, a key cannot be a folder of another key") from error
        except OSError as error:
            self._require_store()
            raise StoreError(f"{key}: {error}") from error
        finally:
            self.busy_since = 0.0


def watch_disk(
    store: FolderStore,
    on_hang: Callable[[float], None],
    *,
    hang_seconds: float = HANG_SECONDS,
    interval: float = CHECK_INTERVAL,
) -> Callable[[], None]:
    """Call `on_hang` with the seconds at each check at which the disk hangs, in a thread; return what ends it.

    The thread that uses the disk waits in the system, and cannot notice it.
    """
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(interval):
            since = store.busy_since
            seconds = time.monotonic() - since
            if since and seconds > hang_seconds:
                on_hang(seconds)

    threading.Thread(target=watch, name="disk watch", daemon=True).start()
    return stopped.set


def _version(status: os.stat_result) -> str:
    """Return what differs between two files of a key. Within one tick of the clock only the inode may do."""
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"


def _checked(key: str) -> str:
    check_key(key)
    if key.partition("/")[0] == RESERVED:
        raise InvalidKey(f"key {key!r}: {RESERVED!r} is reserved for the folder store's own files")
    return key
