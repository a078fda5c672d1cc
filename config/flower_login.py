"""Flower's login: generated once, kept in a file that only its owner can read, and never empty."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from pathlib import Path

from config.checks import LOGIN


def kept_login(path: Path) -> str:
    """Return the login in the file at `path`, which is made with a random password if it is missing.

    Raises ValueError for a file that has no login, OSError where the file cannot be written or read.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # The file appears with its whole content: a disk that is full must not leave an empty login.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(f"flower:{secrets.token_urlsafe(12)}")
                file.flush()
                os.fsync(handle)
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)
    login = path.read_text().rstrip("\r\n")
    if not re.fullmatch(LOGIN, login):
        raise ValueError(f"{path} has no login; delete it to have a new one generated, or set FLOWER_BASIC_AUTH")
    return login
