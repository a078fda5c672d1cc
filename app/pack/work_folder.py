"""A folder for the temporary files of one pack. Those that killed packers left are removed by the next one."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from app.machine import try_lock
from app.storage.disk import locked

log = logging.getLogger(__name__)

#: What the names of work folders begin with; nothing else is ever removed.
PREFIX: Final = "pack-"
#: End of the name of the lock file beside each work folder. The system releases its lock when the packer dies.
LOCK_SUFFIX: Final = ".lock"
#: File that is locked while a work folder is created, or removed after its packer was killed.
CREATION_LOCK: Final = "creating"


@contextmanager
def work_folder(parent: Path) -> Iterator[Path]:
    """Yield a new folder below `parent`, which is created if missing, and remove it with its files afterwards.

    Folders of packers that no longer live are removed first. Raises OSError.
    """
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / f"{PREFIX}{secrets.token_hex(8)}"
    lock_file = Path(f"{folder}{LOCK_SUFFIX}")
    with locked(str(parent / CREATION_LOCK), mode=0o600):
        remove_abandoned(parent)
        lock = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try_lock(lock)  # Nothing else has it: the file is new.
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock_file.unlink(missing_ok=True)
        os.close(lock)


def remove_abandoned(parent: Path) -> None:
    """Remove the work folders below `parent` whose lock is free."""
    for lock_file in parent.glob(f"{PREFIX}*{LOCK_SUFFIX}"):
        with suppress(OSError):  # Its packer has just ended.
            lock = os.open(lock_file, os.O_RDWR | os.O_NOFOLLOW)
            try:
                if try_lock(lock):  # Else its packer lives.
                    folder = lock_file.with_suffix("")
                    shutil.rmtree(folder, ignore_errors=True)
                    lock_file.unlink()
                    log.warning("%s: removed, because its packer was killed", folder)
            finally:
                os.close(lock)
