"""A data directory: the packs of one searcher process; the next process recovers what it left.

<root>/<number>/lock                     locked while a process uses the directory
<root>/<number>/<domain>/<name>.sqlite   a checked pack; no two copies ever have the same name
<root>/<number>/<domain>/<name>.json     its version; without it a pack is unfinished.
<root>/<number>/.loading/                packs that are being fetched.
<root>/<number>/.opening                 marks of versions that are being opened.
<root>/<number>/.sites/                  sites with search settings.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final

from app.broker.errors import InvalidMessage
from app.cluster.protocol import PackVersion, read, size_mb, to_json
from app.errors import PackError, PackQuarantined, StoreError
from app.machine import try_lock
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
        self._is_stopping = False
        #: A line for each process that ended while it opened a version: the checksum and the domain.
        self._crashes: list[str] = []
        with suppress(OSError, UnicodeDecodeError):  # The file is missing or damaged: no crash is counted.
            self._crashes = (folder / _OPENING).read_text().splitlines()

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
                lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                if try_lock(lock):
                    return cls(folder, lock)
                os.close(lock)
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
        self.require_openable(domain, sha256)
        self._mark(f"{sha256} {domain}")
        try:
            yield
        finally:
            self._crashes = [line for line in self._crashes if line.partition(" ")[2] != domain]
            self._mark()

    def require_openable(self, domain: str, sha256: str) -> None:
        """Raise PackQuarantined for a version that has ended MAX_CRASHES processes."""
        crashes = self._crashes.count(f"{sha256} {domain}")
        if crashes >= MAX_CRASHES:
            raise PackQuarantined(
                f"{domain}: opening this version ended {crashes} processes; another version is needed"
            )

    def settings_store(self) -> FolderStore:
        """Return the store of the sites with search settings. On a disk that is full, it fails when it is used."""
        store = FolderStore(self.folder / _SITES)
        with suppress(StoreError):
            store.create()
        return store

    def stop_opening(self) -> None:
        """Take the mark back, and write no other: this process stops as it should, whatever it is opening."""
        self._is_stopping = True
        self._mark()

    def _mark(self, *opening: str) -> None:
        """Write what a process that starts reads as crashes: those so far, and the version that is being opened."""
        written, marks = self.folder / f"{_OPENING}.new", self.folder / _OPENING
        with self._marking:
            lines = self._crashes if self._is_stopping else [*self._crashes, *opening]
            try:
                if lines:
                    written.write_text("\n".join(lines))
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


def _remove_files(folder: Path, *, kept: Container[Path] = ()) -> None:
    """Remove the files of packs from a folder, except those of the kept databases."""
    for path in folder.iterdir():
        if _OWN_FILE.fullmatch(path.name) and path.with_suffix(".sqlite") not in kept:
            path.unlink()
