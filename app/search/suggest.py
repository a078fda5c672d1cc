"""What a query that was begun may go on as: words of the pack, and names of its pages."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection


def suggestions(connection: sqlite3.Connection, text: str, *, hidden: Collection[int], limit: int) -> tuple[str, ...]:
    """Return queries that `text` may be the beginning of, best first; none for what cannot be searched for."""
    return ()
