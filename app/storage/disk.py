"""Folders and lock files on the disk. One system call syncs a folder for all threads that wait for it."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Locks: as many folders are synced at the same time. Those whose paths hash to the same lock wait for each other.
_LOCKS: Final = 64


@dataclass(slots=True, eq=False)
class _Group:
    """Callers that wait for the same sync."""

    is_done: bool = False
    error: OSError | None = None


class FolderSync:
    """Group commit of new names: while a folder is synced, the callers that come become the next group."""

    def __init__(self) -> None:
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._waiting: dict[str, _Group] = {}

    def sync(self, folder: str) -> None:
        """Return when every name that the folder has now is on the disk; raises OSError."""
        group = self._waiting.setdefault(folder, _Group())
        with self._locks[hash(folder) % _LOCKS]:
            if not group.is_done:
                # A name that is made from now on needs another sync.
                del self._waiting[folder]
                try:
                    sync_file(folder)
                except OSError as error:
                    group.error = error
                group.is_done = True
        if group.error is not None:
            raise OSError(group.error.errno, f"syncing failed: {group.error.strerror}", folder)


def sync_files(descriptors: Sequence[int]) -> None:
    """Sync open files together: the disk begins to write the others before the first one is waited for."""
    for descriptor in descriptors[1:]:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    for descriptor in descriptors:
        os.fsync(descriptor)


def sync_file(path: str) -> None:
    """Sync a file, or a folder's entries: otherwise a power failure may undo a rename (fsync(2)). Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder with those above it, each synced into the one that contains it; raises OSError."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_file(str(folder.parent))


@contextmanager
def locked(path: str, *, mode: int = 0o644) -> Iterator[None]:
    """Hold the lock of a file during the block; the file is made where it is missing. Raises OSError."""
    # A new descriptor for each use: flock() excludes other descriptors, not threads or forked processes.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
