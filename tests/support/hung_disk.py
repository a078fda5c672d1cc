"""A folder store whose disk hangs: each write waits in the system, and so does the thread that makes it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from app.storage.folder import LOCKS, RESERVED


@contextmanager
def hung_disk(store: Path) -> Iterator[None]:
    """Let every write to the store wait for the end of the block: this process holds all its locks."""
    with ExitStack() as stack:
        for number in range(LOCKS):
            lock = os.open(store / RESERVED / "locks" / f"{number:02x}", os.O_RDWR | os.O_CREAT)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
