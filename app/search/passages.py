"""Raise the score of pages with a passage that has many of the query's words, in any of their forms."""

from __future__ import annotations

import sqlite3
from collections.abc import Container
from operator import itemgetter
from typing import Final

#: What the best passage adds to a score, as a share of it.
MAX_SHARE: Final = 2.0
#: Passages that are looked at, the best ones.
_COMPARED: Final = 500
#: A rowid is the page's id and the passage's number, which has this number of bits (app/pack/derived.py).
_NUMBER_BITS: Final = 12

_BEST: Final = "SELECT rowid, rank FROM passages WHERE passages MATCH ? ORDER BY +rank LIMIT ?"


def raised(
    connection: sqlite3.Connection, match: str, scores: dict[int, float], *, typed: str = ""
) -> dict[int, float]:
    """Return the scores, best first: those of pages raised by their best passage, compared with the best of all.

    `match` is the FTS5 expression for passages with a word of the query, and `typed` the same without synonyms if it
    has some. A passage with a word and its synonyms must not make those with the typed words look poor.
    """
    if not scores:
        return scores
    best = _best(connection, match, scores)
    most = max(best.values(), default=0.0)
    if typed:
        most = max(_best(connection, typed, scores).values(), default=most)
    if most <= 0:
        return scores
    changed = {page: scores[page] * (1 + MAX_SHARE * min(1.0, score / most)) for page, score in best.items()}
    return dict(sorted((scores | changed).items(), key=itemgetter(1), reverse=True))


def _best(connection: sqlite3.Connection, match: str, scores: Container[int]) -> dict[int, float]:
    """Return the score of each page's best passage."""
    best: dict[int, float] = {}
    for passage, rank in connection.execute(_BEST, (match, _COMPARED)):
        if (page := passage >> _NUMBER_BITS) in scores:
            best.setdefault(page, -rank)
    return best
