"""Folder stores of tests."""

from __future__ import annotations

from pathlib import Path

from app.storage.folder import FolderStore


def folder_store(root: Path) -> FolderStore:
    """Return the store in a folder, made if it is missing."""
    store = FolderStore(root)
    store.create()
    return store
