"""Databases of packs that packers keep on their disk until the next pack, so that an update fetches few frames.

Every frame of a kept database is hashed before it is used, and fetched if it differs. So an older version, or what a
crash left of a file, costs the frames that differ. A packer takes a database away while it uses it: a second one, and
the packer after a killed one, fetch all frames.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

#: Bytes from which on a database is kept. A smaller one is fetched by one request, and very many would be kept.
LEAST_SIZE: Final = 4 * 2**20
#: Seconds without use after which a database is deleted. Its site may have been removed.
MAX_AGE: Final = 7 * 86_400
_SUFFIX: Final = ".sqlite"


@dataclass(frozen=True, slots=True)
class KeptDatabases:
    """The databases in a folder, one a domain, of `limit` bytes together. The folder is on the disk of work folders."""

    folder: Path
    limit: int

    def take(self, domain: str, target: Path) -> None:
        """Move the database of a domain to `target`, if there is one."""
        with suppress(FileNotFoundError):
            self._path(domain).rename(target)

    def keep(self, domain: str, path: Path) -> None:
        """Move the database at `path` here if it is large and fits. Delete those that were used longest ago."""
        try:
            if LEAST_SIZE <= path.stat().st_size <= self.limit:
                self.folder.mkdir(mode=0o700, exist_ok=True)
                os.utime(path)
                path.replace(self._path(domain))
                self._delete_surplus()
        except OSError as error:
            log.warning("%s: its database is not kept, so the next pack fetches all of it: %s", domain, error)

    def delete_all(self) -> None:
        """Delete every database: the disk is full."""
        for path in self.folder.glob(f"*{_SUFFIX}"):
            path.unlink(missing_ok=True)

    def _path(self, domain: str) -> Path:
        return self.folder / f"{domain}{_SUFFIX}"

    def _delete_surplus(self) -> None:
        found = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with suppress(FileNotFoundError):  # Another packer has taken it.
                found.append((path.stat(), path))
        size, oldest = 0, time.time() - MAX_AGE
        for status, path in sorted(found, key=lambda each: each[0].st_mtime, reverse=True):
            size += status.st_size
            if size > self.limit or status.st_mtime < oldest:
                path.unlink(missing_ok=True)
