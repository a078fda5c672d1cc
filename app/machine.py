"""What processes of one machine need: locks on files, private files, waits for conditions, ends of logs, heartbeats."""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from app.errors import ServicesError

_log = logging.getLogger(__name__)


def try_lock(file: IO[Any] | int) -> bool:
    """Take the lock on an open file or folder if it is free; return whether this process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_until(condition: Callable[[], bool], timeout: float, *, every: float = 0.05) -> bool:
    """Check `condition` every `every` seconds for up to `timeout` seconds; return whether it became true."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True


def tail(log: Path, lines: int = 12) -> str:
    """Return the last `lines` lines of `log`, or an empty string where the file is missing."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def touch_heartbeat(file: Path) -> None:
    """Touch the file that a health check looks at; an error is logged only."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError as error:
        _log.warning("Heartbeat file %s not written: %s", file, error)


def write_private(path: Path, text: str) -> None:
    """Replace the file at `path` by `text` with mode 0600; readers see the old text or the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def make_directory(path: Path, *, named_by: str = "PERENNIAL_DATA_DIR") -> Path:
    """Make the folder `path` for its owner only and return it; raises ServicesError where it cannot be written.

    `named_by` is the setting or option that names another folder.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ServicesError(f"{path} cannot be made: {error.strerror}; name another by {named_by}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        reason = "it is read-only, or belongs to another user"
        raise ServicesError(f"{path} cannot be written: {reason}; name another folder by {named_by}")
    return path
