"""A cache of databases of packs on the packers' disk, so that the next pack of a domain fetches few frames.

A packer notes the version of a database. It is valid on the same day, until the system starts again and while nothing
else writes the file: see `etags`. Without it, every frame is hashed, and fetched if it differs. So an older version, or
what a crash left of a file, costs the frames that differ. A packer takes a database away while it uses it: a second
one, and the packer after a killed one, fetch all frames.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from app.pack.frames import sha256
from app.storage.etags import note_etag, noted_etag

log = logging.getLogger(__name__)

#: Bytes from which on a database is cached. A smaller one is fetched by one request, and very many would be cached.
LEAST_SIZE: Final = 4 * 2**20
#: Seconds without use after which a database is deleted. Its site may have been removed.
MAX_AGE: Final = 7 * 86_400
_SUFFIX: Final = ".sqlite"
#: What is different after each start of the system, before which not all that was written may have reached the disk.
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class DatabaseCache:
    """The databases in a folder, one a domain, of `limit` bytes together. The folder is on the disk of work folders."""

    folder: Path
    limit: int

    def take(self, domain: str, target: Path) -> None:
        """Move the database of a domain to `target`, if there is one."""
        with suppress(FileNotFoundError):
            self._path(domain).rename(target)

    def put(self, domain: str, path: Path) -> None:
        """Move the database at `path` here if it is large and fits. Delete those that were used longest ago."""
        try:
            if LEAST_SIZE <= path.stat().st_size <= self.limit:
                self.folder.mkdir(mode=0o700, exist_ok=True)
                _note(path, noted_etag(str(path), path.stat()))
                path.replace(self._path(domain))
            # Also by a packer that caches nothing itself: the limit may be lower than before.
            found = []
            for other in self.folder.glob(f"*{_SUFFIX}"):
                with suppress(FileNotFoundError):  # Another packer has taken it.
                    found.append((other.stat(), other))
            size, oldest = 0, time.time() - MAX_AGE
            for status, other in sorted(found, key=lambda each: each[0].st_mtime, reverse=True):
                size += status.st_size
                if size > self.limit or status.st_mtime < oldest:
                    other.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s: its database is not cached, so the next pack fetches all of it: %s", domain, error)

    def clear(self) -> None:
        """Delete every database: the disk is full."""
        for path in self.folder.glob(f"*{_SUFFIX}"):
            path.unlink(missing_ok=True)

    def _path(self, domain: str) -> Path:
        return self.folder / f"{domain}{_SUFFIX}"


def note_version(path: Path, version: str) -> None:
    """Note that a database has exactly the frames of the table with this hash."""
    _note(path, _mark(version))


def has_version(path: Path, version: str) -> bool:
    """Return whether a file is known to be the database with the frames of the table with this hash."""
    with suppress(FileNotFoundError):
        noted = noted_etag(str(path), path.stat())
        return noted is not None and noted == _mark(version)
    return False


def _note(path: Path, mark: str | None) -> None:
    """Keep the mark of a database that is used now. Any later write changes its time, although the clock is coarse."""
    modified = time.time_ns() - 10**9
    os.utime(path, ns=(modified, modified))
    if mark:
        with path.open("rb") as file:
            note_etag(file.fileno(), mark, modified=modified, size=path.stat().st_size)


def _mark(version: str) -> str | None:
    """Return a hash of the version, the day and the start of the system, None where that is unknown."""
    try:
        return sha256(f"{version} {datetime.now(UTC):%F} {_BOOT_ID.read_text()}".encode())
    except OSError:
        return None
