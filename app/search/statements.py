"""Statements on one pack: matches of an FTS5 expression, document frequencies of its vocabulary, and rows of pages."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from itertools import islice

#: Sorts after every word in SQLite's order of texts.
_AFTER_ALL = "\U0010ffff"

_MATCHING = "SELECT rowid FROM pages_fts WHERE pages_fts MATCH ?"
_COUNT_MATCHING = "SELECT count(*) FROM pages_fts WHERE pages_fts MATCH ?"
_FREQUENCY = "SELECT docs FROM words WHERE word = ?"
_MAX_FREQUENCY = "SELECT max(docs) FROM words WHERE word >= ? AND word < ?"
_WITH_LENGTH = "SELECT word, docs FROM words WHERE docs >= ? AND length(word) BETWEEN ? AND ?"
_WITH_PREFIX = "SELECT word, docs FROM words WHERE word > ? AND word < ? ORDER BY docs DESC, word LIMIT ?"


def first_matches(connection: sqlite3.Connection, match: str, *, hidden: Collection[int], limit: int) -> list[int]:
    """Return at most `limit` pages that match an FTS5 expression, unranked, without reading the others."""
    rows = connection.execute(_MATCHING, (match,))
    pages = list(islice((page for (page,) in rows if page not in hidden), limit))
    rows.close()
    return pages


def count_matches(connection: sqlite3.Connection, match: str) -> int:
    """Return the number of pages that match an FTS5 expression, hidden ones included."""
    (pages,) = connection.execute(_COUNT_MATCHING, (match,)).fetchone()
    return int(pages)


def doc_frequency(connection: sqlite3.Connection, word: str) -> int:
    """Return the number of pages with a folded word; 0 for a rare word that the vocabulary leaves out."""
    row = connection.execute(_FREQUENCY, (word,)).fetchone()
    return int(row[0]) if row else 0


def max_doc_frequency(connection: sqlite3.Connection, prefix: str) -> int:
    """Return the highest document frequency of the words with a prefix."""
    (most,) = connection.execute(_MAX_FREQUENCY, (prefix, prefix + _AFTER_ALL)).fetchone()
    return int(most or 0)


def completions(connection: sqlite3.Connection, prefix: str, *, limit: int) -> list[tuple[str, int]]:
    """Return longer words with a prefix and their document frequencies, the most frequent first."""
    rows = connection.execute(_WITH_PREFIX, (prefix, prefix + _AFTER_ALL, limit))
    return [(word, int(docs)) for word, docs in rows]


def words_of_length(connection: sqlite3.Connection, shortest: int, longest: int, *, least: int) -> dict[str, int]:
    """Return the words of `shortest` to `longest` characters on at least `least` pages, with document frequencies."""
    return dict(connection.execute(_WITH_LENGTH, (least, shortest, longest)))


def read_rows(connection: sqlite3.Connection, columns: str, pages: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """Return the columns after `id` of each page, by id."""
    placeholders = ", ".join("?" * len(pages))
    rows = connection.execute(f"SELECT {columns} FROM pages WHERE id IN ({placeholders})", tuple(pages))  # noqa: S608 (ours)
    return {row[0]: row[1:] for row in rows}
