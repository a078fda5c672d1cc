"""The words of a pack, folded as in its index, with the number of pages that have each."""

from __future__ import annotations

import sqlite3

#: Follows every word in SQLite's order of texts.
_LAST = "\U0010ffff"

_DOCS = "SELECT docs FROM words WHERE word = ?"
_MOST = "SELECT max(docs) FROM words WHERE word >= ? AND word < ?"
_OF_LENGTH = "SELECT word, docs FROM words WHERE docs >= ? AND length(word) BETWEEN ? AND ?"
_BEGUN = "SELECT word, docs FROM words WHERE word > ? AND word < ? ORDER BY docs DESC, word LIMIT ?"


def docs(connection: sqlite3.Connection, word: str) -> int:
    """Return the number of pages that have the word; 0 for one so rare that the pack does not count it."""
    row = connection.execute(_DOCS, (word,)).fetchone()
    return int(row[0]) if row else 0


def most_docs(connection: sqlite3.Connection, beginning: str) -> int:
    """Return the number of pages that have the most frequent of the words that begin so."""
    (most,) = connection.execute(_MOST, (beginning, beginning + _LAST)).fetchone()
    return int(most or 0)


def completions(connection: sqlite3.Connection, beginning: str, *, limit: int) -> list[tuple[str, int]]:
    """Return words that begin so, and go on, with the number of pages that have each, most first."""
    rows = connection.execute(_BEGUN, (beginning, beginning + _LAST, limit))
    return [(word, int(docs)) for word, docs in rows]


def of_length(connection: sqlite3.Connection, shortest: int, longest: int, *, least: int) -> dict[str, int]:
    """Return the words of so many characters that so many pages have at least, with the number of these pages."""
    return dict(connection.execute(_OF_LENGTH, (least, shortest, longest)))
