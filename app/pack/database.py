"""The SQLite side of a pack: creation, fast pragmas, checks, and what is done before it is shipped."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from app.errors import PackCorrupt

#: `PERN`, as `schema.sql` writes it.
APPLICATION_ID: Final = 0x5045524E
#: The version that `schema.sql` writes and this release reads.
SCHEMA_VERSION: Final = 1


def check(path: Path) -> None:
    """Raise PackCorrupt unless the file is a whole database of ours, of the schema version this release reads."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            _check(database, path)
    except sqlite3.Error as error:
        raise PackCorrupt(f"{path.name}: {error}") from error


def _check(database: sqlite3.Connection, path: Path) -> None:
    application = pragma(database, "application_id")
    if application != APPLICATION_ID:
        raise PackCorrupt(f"{path.name}: not a pack: application_id {application:#x}")
    version = pragma(database, "user_version")
    if version != SCHEMA_VERSION:
        raise PackCorrupt(f"{path.name}: schema version {version}, this release reads {SCHEMA_VERSION}")
    verdict = pragma(database, "quick_check")
    if verdict != "ok":
        raise PackCorrupt(f"{path.name}: quick_check: {verdict}")


def pragma(database: sqlite3.Connection, name: str) -> object:
    """Return the first value that a pragma gives."""
    row = database.execute(f"PRAGMA {name}").fetchone()
    return row[0] if row else None
