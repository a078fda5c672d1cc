"""Give the rows of a full pack ids in order of quality, so that searchers need not rank all matches of a query."""

from __future__ import annotations

import sqlite3
from typing import Final

_RANKS: Final = "CREATE TEMP TABLE ranks (rank INTEGER PRIMARY KEY, page INTEGER NOT NULL UNIQUE, shown_as INTEGER)"
#: As the pages of a group are ordered (app/pack/groups.py): shown pages, most linked to, without a query, the shortest
#: address.
_RANK: Final = """
INSERT INTO temp.ranks (page, shown_as) SELECT id, shown_as FROM pages
ORDER BY hidden, inlinks DESC, instr(path, '?') > 0, length(path) - length(replace(path, '/', '')), length(path), key
"""
_RANKED: Final = """
SELECT own.rank, coalesce(shown.rank, 0), own.page
FROM temp.ranks AS own LEFT JOIN temp.ranks AS shown ON shown.page = own.shown_as ORDER BY own.rank
"""
_RESERVE: Final = "INSERT INTO sqlite_sequence (name, seq) VALUES ('pages', ?)"
_RENUMBER: Final = "UPDATE pages SET id = ?, shown_as = ? WHERE id = ?"
_LAST_ID: Final = "UPDATE sqlite_sequence SET seq = ? WHERE name = 'pages'"


def reserve_ids(database: sqlite3.Connection, most: int) -> None:
    """Leave the ids up to `most`, the number of rows that will be inserted, to `order_by_quality`."""
    database.execute(_RESERVE, (most,))


def order_by_quality(database: sqlite3.Connection) -> int:
    """Give the rows ids from 1 on, the best first, before anything refers to them. Return the last one.

    The first matches of a query are then the best ones by what no query changes. Pages that a later pack adds get
    higher ids.
    """
    database.execute(_RANKS)
    pages = database.execute(_RANK).rowcount
    database.executemany(_RENUMBER, database.execute(_RANKED))
    database.execute("DROP TABLE temp.ranks")
    database.execute(_LAST_ID, (pages,))
    return pages
