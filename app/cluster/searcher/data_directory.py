"""A data directory: the packs of one searcher process; the next process recovers what it left.

<root>/<number>/lock                     locked while a process uses the directory
<root>/<number>/<domain>/<name>.sqlite   a checked pack; no two copies ever have the same name
<root>/<number>/<domain>/<name>.json     its version; without it a pack is unfinished.
<root>/<number>/.loading/                packs that are being fetched.
<root>/<number>/.opening                 marks of versions that are being opened.
<root>/<number>/.sites/                  sites with search settings.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import secrets
import threading
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

from app.broker.errors import InvalidMessage
from app.cluster.protocol import PackVersion, read, size_mb, to_json
from app.errors import PackError, PackQuarantined, StoreError
from app.storage.disk import sync_file
from app.storage.folder import FolderStore

log = logging.getLogger(__name__)

_LOCK: Final = "lock"
_LOADING: Final = ".loading"
_OPENING: Final = ".opening"
_SITES: Final = ".sites"
#: Files of a pack, all that this module ever deletes.
_OWN_FILE: Final = re.compile(r"[0-9a-f]{16}\.(sqlite|json)")

#: Processes that may end while they open a version. After that it is not opened again.
MAX_CRASHES: Final = 2

#: A version of a pack, and its database.
StoredPack = tuple[PackVersion, Path]


class DataDirectory:
    """One numbered folder, locked until `close` or the end of the process."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self._lock = lock
        self._renaming = threading.Lock()
        self._loading = folder / _LOADING
        self._loading.mkdir(exist_ok=True)
        # This process has the lock: any unfinished file was left by a process that was killed.
        _remove_files(self._loading)
        self._marking = threading.Lock()
        #: Domain -> version, and the processes that ended while they opened it.
        self._openings: dict[str, tuple[str, int]] = {}
        with suppress(OSError, ValueError, TypeError, AttributeError):  # The file is missing or invalid: no marks.
            marks: dict[str, list[Any]] = json.loads((folder / _OPENING).read_text())
            self._openings = {domain: (str(sha256), int(crashes)) for domain, (sha256, crashes) in marks.items()}
        self._opening: tuple[str, str, int] | None = None

    @classmethod
    def acquire(cls, root: Path) -> DataDirectory:
        """Lock the first directory below `root` that no process uses, or a new one; raises PackError.

        A folder that another program made is left alone.
        """
        try:
            for number in count(1):
                folder = root / str(number)
                folder.mkdir(parents=True, exist_ok=True)
                names = {path.name for path in folder.iterdir()}
                if not (names <= {_LOCK} or {_LOCK, _LOADING} <= names):
                    log.warning("%s was not made by a searcher: the next number is tried", folder)
                    continue
                lock = _lock(folder / _LOCK)
                if lock is not None:
                    return cls(folder, lock)
        except OSError as error:
            raise PackError(f"{root}: no data directory can be locked: {error}") from error
        raise AssertionError("count() is infinite")

    def recover(self) -> list[StoredPack]:
        """Return the packs that a previous process left, one per domain in order of domain; remove its other files.

        They were checked when they arrived.
        """
        newest: dict[str, StoredPack] = {}
        notes = [note for note in self.folder.glob("*/*.json") if _OWN_FILE.fullmatch(note.name)]
        # A process that was killed between adding a version and removing the previous one leaves both: the later holds.
        for note in sorted(notes, key=lambda note: note.lstat().st_mtime_ns):
            path = note.with_suffix(".sqlite")
            try:
                version = read(PackVersion, note.read_bytes())
                size = size_mb(path.stat().st_size)
            except (InvalidMessage, OSError) as error:
                log.warning("Pack not recovered, removed: %s: %s", note, error)
                continue
            if (version.domain, version.size_mb) == (note.parent.name, size):
                newest[version.domain] = (version, path)
        kept = {path for _version, path in newest.values()}
        for folder in self.folder.iterdir():
            if folder.is_dir() and folder != self._loading and not folder.is_symlink():
                _remove_files(folder, kept=kept)
                with suppress(OSError):  # It holds a pack, or a file of another program.
                    folder.rmdir()
        return [newest[domain] for domain in sorted(newest)]

    @contextmanager
    def temporary_file(self) -> Iterator[Path]:
        """Yield a path to write a pack to; the file is removed afterwards unless it was kept."""
        path = self._loading / f"{secrets.token_hex(8)}.sqlite"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def keep(self, version: PackVersion, written: Path) -> Path:
        """Sync a pack, move it from its temporary file to its domain's folder, and return its path there.

        Raises OSError, and leaves no further file then.
        """
        folder, note = self.folder / version.domain, written.with_suffix(".json")
        try:
            # What a full disk refuses is first. A pack with a note is not checked again after a power failure.
            sync_file(str(written))
            note.write_bytes(to_json(version))
            with self._renaming:
                folder.mkdir(exist_ok=True)
                path = written.replace(folder / written.name)
            note.replace(path.with_suffix(".json"))
        finally:
            note.unlink(missing_ok=True)
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

    @contextmanager
    def opening(self, domain: str, sha256: str) -> Iterator[None]:
        """Mark a version while the block opens it: the mark stays if the block ends this process.

        Raises PackQuarantined for a version that ended MAX_CRASHES processes, until the domain has another version.
        """
        crashes = self.require_openable(domain, sha256)
        with self._marking:
            self._opening = (domain, sha256, crashes)
            self._mark(domain, (sha256, crashes + 1))
        try:
            yield
        finally:
            with self._marking:
                self._opening = None
                self._mark(domain, None)

    def require_openable(self, domain: str, sha256: str) -> int:
        """Return the number of processes that a version has ended; raises PackQuarantined after MAX_CRASHES."""
        marked, crashes = self._openings.get(domain, ("", 0))
        crashes = crashes if marked == sha256 else 0
        if crashes >= MAX_CRASHES:
            raise PackQuarantined(
                f"{domain}: opening this version ended {crashes} processes; another version is needed"
            )
        return crashes

    def settings_store(self) -> FolderStore:
        """Return the store of the sites with search settings. On a disk that is full, it fails when it is used."""
        store = FolderStore(self.folder / _SITES)
        with suppress(StoreError):
            store.create()
        return store

    def stop_opening(self) -> None:
        """Take the mark back: this process stops as it should, although the version is not open yet."""
        with self._marking:
            if self._opening is not None:
                domain, sha256, crashes = self._opening
                self._mark(domain, (sha256, crashes) if crashes else None)

    def _mark(self, domain: str, mark: tuple[str, int] | None) -> None:
        if mark:
            self._openings[domain] = mark
        else:
            self._openings.pop(domain, None)
        written, marks = self.folder / f"{_OPENING}.new", self.folder / _OPENING
        try:
            if self._openings:
                written.write_text(json.dumps(self._openings))
                written.replace(marks)
            else:
                marks.unlink(missing_ok=True)
        except OSError as error:
            # Packs are served from a full disk, too. Only a crash of this process is not counted then.
            written.unlink(missing_ok=True)
            log.warning("Mark of an opened version not written, goes on without: %s: %s", marks, error)

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


def _remove_files(folder: Path, *, kept: Container[Path] = ()) -> None:
    """Remove the files of packs from a folder, except those of the kept databases."""
    for path in folder.iterdir():
        if _OWN_FILE.fullmatch(path.name) and path.with_suffix(".sqlite") not in kept:
            path.unlink()
