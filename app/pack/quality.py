"""Give the rows of a full pack ids in order of quality, so that searchers need not rank all matches of a query."""

from __future__ import annotations

import sqlite3
from typing import Final

#: As the pages of a group are ordered (app/pack/groups.py): shown pages, most linked to, without a query, the shortest
#: address.
_BY_QUALITY: Final = """
SELECT id FROM pages
ORDER BY hidden, inlinks DESC, instr(path, '?') > 0, length(path) - length(replace(path, '/', '')), length(path), key
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
    numbers = {page: number for number, (page,) in enumerate(database.execute(_BY_QUALITY).fetchall(), 1)}
    shown_as = dict(database.execute("SELECT id, shown_as FROM pages WHERE shown_as <> 0").fetchall())
    rows = ((number, numbers.get(shown_as.get(page, 0), 0), page) for page, number in numbers.items())
    database.executemany(_RENUMBER, rows)
    database.execute(_LAST_ID, (len(numbers),))
    return len(numbers)
