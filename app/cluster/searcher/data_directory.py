"""A data directory: the packs of one searcher process; the next process recovers what it left.

<root>/<number>/lock                     locked while a process uses the slot
<root>/<number>/<domain>/<name>.sqlite   a pack, checked; no two copies ever have the same name
<root>/<number>/<domain>/<name>.json     which one it is; written last, so that a pack without it is unfinished
<root>/<number>/.loading/                what is being fetched
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
        # The lock is held: unfinished files are those of a process that was killed.
        shutil.rmtree(self._loading, ignore_errors=True)
        self._loading.mkdir()

    @classmethod
    def take(cls, root: Path) -> DataDirectory:
        """Take the first slot below `root` that no process uses, a new one where all are used; raises PackError."""
        try:
            for number in count(1):
                folder = root / str(number)
                folder.mkdir(parents=True, exist_ok=True)
                lock = _locked(folder / _LOCK)
                if lock is not None:
                    return cls(folder, lock)
        except OSError as error:
            raise PackError(f"{root}: no folder for packs: {error}") from error
        raise AssertionError("numbers do not end")

    def recover(self) -> list[StoredPack]:
        """Return the packs that stand here, one of each domain, in order of domain, and remove everything else.

        Nothing is said of what is in them: they are to be checked.
        """
        newest: dict[str, tuple[int, StoredPack]] = {}
        for note in self.folder.glob("*/*.json"):
            held = _held(note)
            # Of two, a process was killed between placing the one and removing the other.
            if held and note.stat().st_mtime_ns > newest.get(held[0].domain, (0,))[0]:
                newest[held[0].domain] = (note.stat().st_mtime_ns, held)
        found = [held for _, held in newest.values()]
        self._remove_all_but({path for _, path in found})
        return sorted(found, key=lambda held: held[0].domain)

    @contextmanager
    def temporary_file(self) -> Iterator[Path]:
        """Yield where a pack is to be written; what is not kept is removed afterwards."""
        path = self._loading / f"{secrets.token_hex(8)}.sqlite"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def keep(self, holding: PackVersion, written: Path) -> Path:
        """Move a pack from its workplace to where it stays, and return that path."""
        folder = self.folder / holding.domain
        with self._renaming:
            folder.mkdir(exist_ok=True)
            path = written.replace(folder / written.name)
        note = written.with_suffix(".json")
        note.write_bytes(to_json(holding))
        note.replace(path.with_suffix(".json"))
        return path

    def remove(self, path: Path) -> None:
        """Remove a pack; its note goes first, so that a half removed one is not taken for a pack."""
        try:
            path.with_suffix(".json").unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s: not removed: %s", path, error)
        with self._renaming, suppress(OSError):  # Another version stands there.
            path.parent.rmdir()

    def touch(self) -> None:
        """Set the lock file's time to now, for health checks from outside of the process."""
        os.utime(self._lock)

    def close(self) -> None:
        """Leave the folder to the next process."""
        os.close(self._lock)

    def _remove_all_but(self, kept: set[Path]) -> None:
        ours = {self.folder / _LOCK, self._loading}
        for folder in set(self.folder.iterdir()) - ours:
            for path in folder.iterdir() if folder.is_dir() else ():
                if path.with_suffix(".sqlite") not in kept:
                    path.unlink()
            if folder not in {path.parent for path in kept}:
                shutil.rmtree(folder, ignore_errors=True)


def _locked(path: Path) -> int | None:
    """Return the descriptor that holds the lock, or None where another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _held(note: Path) -> StoredPack | None:
    """Return the pack that a note is of, or None where the two do not belong together."""
    path = note.with_suffix(".sqlite")
    try:
        holding = read(PackVersion, note.read_bytes())
        as_noted = (holding.domain, holding.size_mb)
        as_found = (note.parent.name, size_mb(path.stat().st_size))
    except (InvalidMessage, OSError) as error:
        log.warning("%s: not taken over: %s", note, error)
        return None
    return (holding, path) if as_noted == as_found else None
