"""At most one `perennial up` a checkout: it holds a lock, which tells its process id to whoever wants it stopped."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from app.errors import ServicesError
from app.services.processes import KILL_WAIT

#: Seconds between two looks whether the lock is free.
_POLL = 0.1


@contextmanager
def only_one(data_dir: Path) -> Iterator[None]:
    """Hold the lock for the block; raises ServicesError where another process holds it."""
    data_dir.mkdir(parents=True, exist_ok=True)
    with _file(data_dir).open("a+") as file:
        if not _lock(file):
            raise ServicesError(f"perennial up runs already, as process {_holder(file)}")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def stop(data_dir: Path) -> bool:
    """Tell the process that holds the lock to end and wait until it has; return whether there was one.

    Raises ServicesError when it does not end in time.
    """
    if not _file(data_dir).exists():
        return False
    with _file(data_dir).open("a+") as file:
        if _lock(file):
            return False
        # Who holds a lock is alive: its process id cannot be another's by now.
        os.kill(_holder(file), signal.SIGTERM)
        deadline = time.monotonic() + KILL_WAIT + 10
        while not _lock(file):
            if time.monotonic() > deadline:
                raise ServicesError(f"process {_holder(file)} (perennial up) does not end")
            time.sleep(_POLL)
    return True


def _file(data_dir: Path) -> Path:
    return data_dir / "up.lock"


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(file: IO[str]) -> int:
    file.seek(0)
    return int(file.read() or 0)
