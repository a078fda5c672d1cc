"""Folder stores of tests."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from app.storage.folder import FolderStore


def folder_store(root: Path) -> FolderStore:
    """Return the store in a folder, made if it is missing."""
    store = FolderStore(root)
    store.create()
    return store


def without_attributes(patch: pytest.MonkeyPatch) -> None:
    """Let every file system seem to have neither extended attributes nor hard links."""
    for name in ("setxattr", "getxattr", "link"):
        patch.setattr(os, name, not_supported)


def not_supported(*_: object) -> None:
    """Raise the error of a file system that lacks an operation."""
    raise OSError(errno.EOPNOTSUPP, "Operation not supported")
