"""The table `meta` of a pack: what describes it, and what the next incremental pack needs. See `schema.sql`."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Final

_WRITE: Final = "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


def read_meta(database: sqlite3.Connection) -> dict[str, str]:
    """Return the entries."""
    return dict(database.execute("SELECT key, value FROM meta"))


def write_meta(database: sqlite3.Connection, entries: Mapping[str, str]) -> None:
    """Write these entries in place of former ones."""
    database.executemany(_WRITE, entries.items())
