"""Flower's login: generated once, kept in a file that only its owner can read, and never empty."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from pathlib import Path

#: A user without colon, and a password. Flower would accept an empty login from every visitor that sends one.
_LOGIN = re.compile(r"[^:\s]+:[^\r\n]+")


def check_login(login: str, source: str) -> str:
    """Return a login; raises ValueError, which names its source, unless it is `user:password`."""
    if not _LOGIN.fullmatch(login):
        raise ValueError(f"{source}: expected user:password")
    return login


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
    source = f"{path} has no login; delete it to have a new one generated, or set FLOWER_BASIC_AUTH"
    return check_login(path.read_text().rstrip("\r\n"), source)
