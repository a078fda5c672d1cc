"""The SQLite side of a pack: creation, fast pragmas, checks, and what is done before it is shipped."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from app.errors import PackCorrupt, PackError
from app.pack.names import note_names

#: `PERN`, as `schema.sql` writes it.
APPLICATION_ID: Final = 0x5045524E
#: The version that `schema.sql` writes and this release reads.
SCHEMA_VERSION: Final = 2

#: Bytes of words that FTS5 gathers before it writes them out: 64 MB halve the time of a load, its own 1 MB does not.
FTS_HASH_SIZE: Final = 64 * 2**20

#: Words that are noted of a pack, those of most pages, and the characters of the longest one.
MOST_WORDS: Final = 100_000
LONGEST_WORD: Final = 40

#: The file is private and thrown away on any failure, so nothing is journalled, flushed or shared.
FAST: Final = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA cache_size = -65536;
"""

_HERE = Path(__file__).parent
SCHEMA: Final = (_HERE / "schema.sql").read_text()
TRIGGERS: Final = (_HERE / "triggers.sql").read_text()
HIDDEN: Final = (_HERE / "hidden.sql").read_text()
WORDS: Final = (_HERE / "words.sql").read_text()


@contextmanager
def create(path: Path) -> Iterator[sqlite3.Connection]:
    """Make a new, empty database of this release's schema open for a load; raises PackError when SQLite fails."""
    with _opened(path) as database:
        database.executescript(SCHEMA)
        database.execute("INSERT INTO pages_fts (pages_fts, rank) VALUES ('hashsize', ?)", (FTS_HASH_SIZE,))
        yield database


@contextmanager
def open_for_changes(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a checked database with the triggers that keep its index true; raises PackError when SQLite fails."""
    with _opened(path) as database:
        database.executescript(TRIGGERS)
        yield database


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.executescript(FAST)
            yield database
    except sqlite3.Error as error:
        raise PackError(f"{path.name}: {error}") from error


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Commit what the block does. There is no way back: without a journal, a failure ends the file's life."""
    database.execute("BEGIN")
    yield
    database.execute("COMMIT")


def rebuild_index(database: sqlite3.Connection) -> None:
    """Fill the full-text index from all rows at once, twice as fast as row by row under triggers."""
    database.execute("INSERT INTO pages_fts (pages_fts) VALUES ('rebuild')")


def ship(database: sqlite3.Connection, target: Path, meta: Mapping[str, str]) -> None:
    """Hide doubles, note `meta`, and write a dense copy to `target`, checked: one file, with no journal beside it.

    Raises PackCorrupt when the copy does not pass, which only a failing disk explains.
    """
    database.executescript(TRIGGERS)
    with transaction(database):
        database.execute(HIDDEN)
        noted = {**meta, "pages": str(count(database))}
        database.execute("DELETE FROM meta")
        database.executemany("INSERT INTO meta (key, value) VALUES (?, ?)", noted.items())
        database.execute("INSERT INTO pages_fts (pages_fts) VALUES ('optimize')")
        note_words(database)
        note_names(database)
    # Unlike VACUUM, VACUUM INTO needs no temporary file outside the work folder, and it writes the pages once.
    database.execute("VACUUM INTO ?", (str(target),))
    check(target)


def note_words(database: sqlite3.Connection) -> None:
    """Write down the words of the full-text index, so that nobody who searches need count them."""
    database.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.vocabulary USING fts5vocab (main, pages_fts, row)")
    database.execute("DELETE FROM words")
    database.execute(WORDS, {"longest": LONGEST_WORD, "most": MOST_WORDS})


def count(database: sqlite3.Connection) -> int:
    """Return the number of pages."""
    (pages,) = database.execute("SELECT count(*) FROM pages").fetchone()
    return int(pages)


def describe(path: Path) -> tuple[dict[str, str], int]:
    """Return what a database says of itself, and its number of pages; raises PackCorrupt when it has no such tables."""
    try:
        with closing(sqlite3.connect(path)) as database:
            return dict(database.execute("SELECT key, value FROM meta")), count(database)
    except sqlite3.Error as error:
        raise PackCorrupt(f"{path.name}: {error}") from error


def check_index(path: Path) -> None:
    """Raise PackCorrupt unless the full-text index holds exactly the words of the rows."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("INSERT INTO pages_fts (pages_fts, rank) VALUES ('integrity-check', 1)")
    except sqlite3.Error as error:
        raise PackCorrupt(f"{path.name}: full-text index: {error}") from error


def check(path: Path) -> None:
    """Raise PackCorrupt unless the file is a whole database of ours, of the schema version this release reads."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            _check(database, path)
    except sqlite3.Error as error:
        raise PackCorrupt(f"{path.name}: {error}") from error


def _check(database: sqlite3.Connection, path: Path) -> None:
    application = _pragma(database, "application_id")
    if application != APPLICATION_ID:
        raise PackCorrupt(f"{path.name}: not a pack: application_id {application}")
    version = _pragma(database, "user_version")
    if version != SCHEMA_VERSION:
        raise PackCorrupt(f"{path.name}: {wrong_version(version)}")
    verdict = _pragma(database, "quick_check")
    if verdict != "ok":
        raise PackCorrupt(f"{path.name}: quick_check: {verdict}")


def wrong_version(version: object) -> str:
    """Return what to say of a database of another schema version."""
    older = isinstance(version, int) and version < SCHEMA_VERSION
    remedy = "; `perennial pack DOMAIN` builds it anew from the stored pages" if older else ""
    return f"schema version {version}, this release reads {SCHEMA_VERSION}{remedy}"


def _pragma(database: sqlite3.Connection, name: str) -> object:
    row = database.execute(f"PRAGMA {name}").fetchone()
    return row[0] if row else None
