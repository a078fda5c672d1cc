"""Folder stores of tests."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.storage.folder import FolderStore
from app.storage.layout import MANIFEST_PREFIX
from app.storage.store import Stat, StoredObject


class Killed(BaseException):
    """Stands for the death of a process."""


def die() -> None:
    """End this process, as far as a test is concerned."""
    raise Killed


class InterruptedStore(FolderStore):
    """A folder store that calls `act` before its request number `left`; by default, its process is killed then."""

    def __init__(self, root: Path, left: int, *, act: Callable[[], object] = die) -> None:
        super().__init__(root)
        self.left, self.act = left, act

    def _step(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.act()

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        self._step()
        return super().put(key, data, if_match=if_match, if_absent=if_absent)

    def get(self, key: str) -> StoredObject:
        self._step()
        return super().get(key)

    def get_part(self, key: str, start: int, size: int) -> bytes:
        self._step()
        return super().get_part(key, start, size)

    def delete(self, key: str, *, if_match: str | None = None) -> None:
        self._step()
        super().delete(key, if_match=if_match)


class ManifestStore(FolderStore):
    """A folder store that calls a function right before or after a pack's manifest is written."""

    def __init__(
        self, root: Path, *, before: Callable[[], object] = lambda: None, after: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(root)
        self._before, self._after = before, after

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        is_manifest = key.startswith(MANIFEST_PREFIX)
        if is_manifest:
            self._before()
        etag = super().put(key, data, if_match=if_match, if_absent=if_absent)
        if is_manifest:
            self._after()
        return etag


class RecordingStore(FolderStore):
    """A folder store that records which keys were read, and which prefixes were listed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read: list[str] = []
        self.listed: list[str] = []

    def list(self, prefix: str) -> Iterator[Stat]:
        self.listed.append(prefix)
        return super().list(prefix)

    def list_versions(self, prefix: str) -> Iterator[tuple[str, str]]:
        self.listed.append(prefix)
        return super().list_versions(prefix)

    def get(self, key: str) -> StoredObject:
        self.read.append(key)
        return super().get(key)


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
