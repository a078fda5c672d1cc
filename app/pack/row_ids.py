"""Give the rows of a full pack ids in order of quality, so that searchers need not rank all matches of a query."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

_RANKS: Final = "CREATE TEMP TABLE ranks (rank INTEGER PRIMARY KEY, page INTEGER NOT NULL UNIQUE, shown_as INTEGER)"
#: As the pages of a group are ordered (app/pack/groups.py): shown pages, most linked to, without a query, the shortest
#: address.
_RANK: Final = """
INSERT INTO temp.ranks (page, shown_as) SELECT id, shown_as FROM pages
ORDER BY hidden, inlinks DESC, instr(path, '?') > 0, length(path) - length(replace(path, '/', '')), length(path),
    canonical_key
"""
_RANKED: Final = """
SELECT own.rank, coalesce(shown.rank, 0), own.page
FROM temp.ranks AS own LEFT JOIN temp.ranks AS shown ON shown.page = own.shown_as ORDER BY own.rank
"""


def reserve_ids(database: sqlite3.Connection, most: int) -> None:
    """Leave the ids up to `most`, the number of rows that will be inserted, to `ranked`."""
    database.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('pages', ?)", (most,))


def ranked(database: sqlite3.Connection) -> Iterator[tuple[int, int, int]]:
    """Yield the new id of each row, the best first; that of the page shown for it, or 0; and its present id.

    The first matches of a query are then the best ones by what no query changes. Pages that a later pack adds get
    higher ids.
    """
    database.execute(_RANKS)
    pages = database.execute(_RANK).rowcount
    yield from database.execute(_RANKED)
    database.execute("DROP TABLE temp.ranks")
    database.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'pages'", (pages,))
