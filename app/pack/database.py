"""The SQLite side of a pack: create, open, copy and check the database, and its table `meta`."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Final

from app.errors import PackCorrupt, PackError
from app.pack.properties import check_properties
from app.search.connections import check_version

#: Bytes of terms that FTS5 collects before it writes a segment. Its own 1 MB doubles the time of a load.
FTS_HASH_SIZE: Final = 16 * 2**20

#: Bytes of a database up to which it matters little that rows are not beside each other.
SMALL: Final = 2**20

#: The file is private and deleted after any failure, so it needs no journal, no fsync and no sharing.
LOAD_PRAGMAS: Final = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA cache_size = -16384;
PRAGMA secure_delete = OFF;
"""

#: Bytes of the header of SQLite's WAL, and of that of each page in it.
_WAL_HEADER: Final = 32
_WAL_PAGE_HEADER: Final = 24

_FOLDER: Final = Path(__file__).parent
SCHEMA: Final = (_FOLDER / "schema.sql").read_text()
CHANGES: Final = (_FOLDER / "changes.sql").read_text()

#: Characters of an object's definition that are read, and of its name in an error; objects that an error names.
_MAX_SQL: Final = 10_000
_MAX_NAME: Final = 60
_NAMED_OBJECTS: Final = 5
#: The table `meta` describes the pack, and has what the next incremental pack needs.
_WRITE_META: Final = """
INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""
_COMMENT: Final = re.compile(r"--[^\n]*")
_SHADOW_TABLE: Final = re.compile(r"table (names|name_stems|passages|pages_fts)_[a-z]+")
_PLAIN_TABLE: Final = re.compile(r"CREATE TABLE '?[a-z_]+'?\([\w ,]*\)( WITHOUT ROWID)?")


# Create and update


@contextmanager
def create(path: Path) -> Iterator[sqlite3.Connection]:
    """Create an empty database with this release's schema, open for a load; raises PackError when SQLite fails."""
    path.write_bytes(_empty_database())
    with _open(path) as database:
        yield database


@cache
def _empty_database() -> bytes:
    """Return the bytes of a database without rows: to run its schema takes longer than to load a few pages."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.executescript(SCHEMA)
        database.execute("INSERT INTO pages_fts (pages_fts, rank) VALUES ('hashsize', ?)", (FTS_HASH_SIZE,))
        return database.serialize()


@contextmanager
def open_for_update(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a checked database with triggers that note the rows that are changed; raises PackError when SQLite fails."""
    with _open(path) as database:
        database.executescript(CHANGES)
        yield database


@contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.executescript(LOAD_PRAGMAS)
            yield database
    except sqlite3.Error as error:
        raise PackError(f"{path.name}: {error}") from error


def note_written_pages(database: sqlite3.Connection) -> None:
    """Let `written_ranges` know which pages of the file are written from now on: SQLite collects them in its WAL."""
    database.executescript("PRAGMA main.journal_mode = WAL; PRAGMA wal_autocheckpoint = 0;")


def written_ranges(database: sqlite3.Connection) -> list[range]:
    """Write the collected pages to the file. Return their places in it, in bytes."""
    with Path(f"{_path_of(database)}-wal").open("rb") as wal:
        # https://sqlite.org/fileformat2.html#the_write_ahead_log: a header, and pages with a header each.
        header = wal.read(_WAL_HEADER)
        size = int.from_bytes(header[8:12])
        numbers = {1}  # The first page says which mode the file is in.
        while page := wal.read(_WAL_PAGE_HEADER):
            numbers.add(int.from_bytes(page[:4]))
            wal.seek(size, os.SEEK_CUR)
    database.execute("PRAGMA main.journal_mode = OFF")
    return [range((number - 1) * size, number * size) for number in sorted(numbers)]


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Commit the block's changes. There is no rollback: without a journal, a failure makes a new file useless."""
    database.execute("BEGIN")
    yield
    database.execute("COMMIT")


def write_compact(database: sqlite3.Connection, target: Path) -> Path:
    """Write a compact copy to `target`, unless the database is small and has no free space. Check and return the file.

    Raises PackCorrupt for a file that fails the check, which only a failing disk explains.
    """
    compact = _path_of(database)
    if _pragma(database, "freelist_count") or compact.stat().st_size > SMALL:
        # The copy has a cache of the same size, and is written in order.
        database.execute("PRAGMA cache_size = -2048")
        # Unlike VACUUM, VACUUM INTO needs no temporary file outside the work folder, and it writes the pages once.
        database.execute("VACUUM INTO ?", (str(target),))
        compact = target
    check(compact)
    return compact


def read_meta(database: sqlite3.Connection) -> dict[str, str]:
    """Return the entries of `meta`."""
    return dict(database.execute("SELECT key, value FROM meta"))


def write_meta(database: sqlite3.Connection, entries: Mapping[str, str]) -> None:
    """Write these entries in place of former ones."""
    database.executemany(_WRITE_META, entries.items())


# Check


def check(path: Path, *, is_intact: bool = False) -> None:
    """Raise PackCorrupt unless the file is an intact pack of this release's schema version.

    With `is_intact`, only its schema is checked: its checksum says that it is as a packer wrote it.
    """
    try:
        with _reading(path) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            check_version(database, path.name)
            # Before anything that runs what the schema says: a check evaluates constraints and indexed expressions.
            if differing := _differing_objects(database):
                raise PackCorrupt(f"{path.name}: its schema has other objects than a pack: {', '.join(differing)}")
            result = "ok" if is_intact else _pragma(database, "quick_check")
            if result != "ok":
                raise PackCorrupt(f"{path.name}: quick_check: {result}")
            if not is_intact:
                check_properties(database, path.name)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite quotes invalid texts of the schema in its errors.
        raise PackCorrupt(f"{path.name}: {error}") from error


def _reading(path: Path) -> closing[sqlite3.Connection]:
    """Open a database that does not change meanwhile, although its packer may have locked it."""
    return closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True))


@cache
def _expected_schema() -> dict[str, str]:
    """Return the objects of a complete pack, as `_schema` does."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(SCHEMA)
        return _schema(database)


def _schema(database: sqlite3.Connection) -> dict[str, str]:
    """Return "type name" -> SQL of the objects of a database, without comments and line breaks."""
    rows = database.execute(f"SELECT type, substr(name, 1, {_MAX_SQL}), substr(sql, 1, {_MAX_SQL}) FROM sqlite_master")  # noqa: S608 (ours)
    return {f"{kind} {name}": " ".join(_COMMENT.sub("", sql or "").split()) for kind, name, sql in rows}


def _differing_objects(database: sqlite3.Connection) -> list[str]:
    """Return the first objects that a pack has not, lacks or defines in another way.

    The tables that FTS5 keeps for itself may have other plain columns: they depend on the version of SQLite.
    """
    expected, found = _expected_schema(), _schema(database)
    differing = [
        name
        for name in expected.keys() | found.keys()
        if found.get(name) != expected.get(name)
        and not (_SHADOW_TABLE.fullmatch(name) and name in expected and _PLAIN_TABLE.fullmatch(found.get(name, "")))
    ]
    return sorted(name[:_MAX_NAME] for name in differing)[:_NAMED_OBJECTS]


def meta_of(path: Path) -> dict[str, str]:
    """Return the entries of `meta` of a database; raises PackCorrupt for one without this table."""
    try:
        with _reading(path) as database:
            return read_meta(database)
    except sqlite3.Error as error:
        raise PackCorrupt(f"{path.name}: {error}") from error


def _path_of(database: sqlite3.Connection) -> Path:
    return Path(database.execute("PRAGMA database_list").fetchone()[2])


def _pragma(database: sqlite3.Connection, name: str) -> object:
    row = database.execute(f"PRAGMA {name}").fetchone()
    return row[0] if row else None
