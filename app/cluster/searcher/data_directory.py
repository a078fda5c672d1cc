"""A data directory: the packs of one searcher process; the next process recovers what it left.

<root>/<number>/lock                     locked while a process uses the directory
<root>/<number>/<domain>/<name>.sqlite   a checked pack; no two copies ever have the same name
<root>/<number>/<domain>/<name>.json     its version; written last, so that a pack without it is unfinished
<root>/<number>/.loading/                packs that are being fetched
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final

from app.broker.errors import InvalidMessage
from app.cluster.protocol import PackVersion, read, size_mb, to_json
from app.errors import PackError

log = logging.getLogger(__name__)

_LOCK: Final = "lock"
_LOADING: Final = ".loading"

#: A version of a pack, and its database.
StoredPack = tuple[PackVersion, Path]


class DataDirectory:
    """One numbered folder, locked until `close` or the end of the process."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self._lock = lock
        self._renaming = threading.Lock()
        self._loading = folder / _LOADING
        # This process has the lock: any unfinished file was left by a process that was killed.
        shutil.rmtree(self._loading, ignore_errors=True)
        self._loading.mkdir()

    @classmethod
    def acquire(cls, root: Path) -> DataDirectory:
        """Lock the first directory below `root` that no process uses, or a new one; raises PackError."""
        try:
            for number in count(1):
                folder = root / str(number)
                folder.mkdir(parents=True, exist_ok=True)
                lock = _lock(folder / _LOCK)
                if lock is not None:
                    return cls(folder, lock)
        except OSError as error:
            raise PackError(f"{root}: no data directory can be locked: {error}") from error
        raise AssertionError("count() is infinite")

    def recover(self) -> list[StoredPack]:
        """Return the packs that a previous process left, one per domain in order of domain; remove all other files.

        The caller has to check them: their content may be damaged.
        """
        newest: dict[str, tuple[int, StoredPack]] = {}
        for note in self.folder.glob("*/*.json"):
            held = _stored_pack(note)
            # A process that was killed between adding a version and removing the previous one leaves both.
            if held and note.stat().st_mtime_ns > newest.get(held[0].domain, (0,))[0]:
                newest[held[0].domain] = (note.stat().st_mtime_ns, held)
        packs = [held for _mtime, held in newest.values()]
        kept = {path for _version, path in packs}
        for folder in set(self.folder.iterdir()) - {self.folder / _LOCK, self._loading}:
            for path in folder.iterdir() if folder.is_dir() else ():
                if path.with_suffix(".sqlite") not in kept:
                    path.unlink()
            if folder not in {path.parent for path in kept}:
                shutil.rmtree(folder, ignore_errors=True)
        return sorted(packs, key=lambda held: held[0].domain)

    @contextmanager
    def temporary_file(self) -> Iterator[Path]:
        """Yield a path to write a pack to; the file is removed afterwards unless it was kept."""
        path = self._loading / f"{secrets.token_hex(8)}.sqlite"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def keep(self, version: PackVersion, written: Path) -> Path:
        """Move a pack from its temporary file to its domain's folder, and return its path there."""
        folder = self.folder / version.domain
        with self._renaming:
            folder.mkdir(exist_ok=True)
            path = written.replace(folder / written.name)
        note = written.with_suffix(".json")
        note.write_bytes(to_json(version))
        note.replace(path.with_suffix(".json"))
        return path

    def remove(self, path: Path) -> None:
        """Remove a pack. Its note is removed first, so that no half-removed pack is recovered."""
        try:
            path.with_suffix(".json").unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("Pack file %s not removed: %s", path, error)
        with self._renaming, suppress(OSError):  # Another version is stored there.
            path.parent.rmdir()

    def touch(self) -> None:
        """Set the lock file's modification time to now, for health checks by other processes."""
        os.utime(self._lock)

    def close(self) -> None:
        """Release the lock: the next process may use the directory."""
        os.close(self._lock)


def _lock(path: Path) -> int | None:
    """Lock a file and return its descriptor, or None if another process has the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _stored_pack(note: Path) -> StoredPack | None:
    """Return the pack that a note describes, or None if the note is unreadable or does not match the file."""
    path = note.with_suffix(".sqlite")
    try:
        version = read(PackVersion, note.read_bytes())
        noted = (version.domain, version.size_mb)
        actual = (note.parent.name, size_mb(path.stat().st_size))
    except (InvalidMessage, OSError) as error:
        log.warning("Pack not recovered, removed: %s: %s", note, error)
        return None
    return (version, path) if noted == actual else None
