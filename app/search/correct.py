"""Did you mean: the words of a query that a pack hardly knows, in the nearest spelling that finds more."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from app.search.query import Query
from app.search.ranking import Ranking


def did_you_mean(connection: sqlite3.Connection, query: Query, found: Ranking, *, hidden: Collection[int]) -> str:
    """Return a query that finds more than this one did, where that was next to nothing; or an empty string."""
    return ""
