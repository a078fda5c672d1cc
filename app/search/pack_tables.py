"""Read a pack's tables by statements: matches, vocabulary and rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Container, Iterator, Sequence
from itertools import islice
from typing import Any

#: Sorts after every word in SQLite's order of texts.
AFTER_ALL = "\U0010ffff"

#: Pages that are counted at most. The rarity of a word on more pages is next to nothing.
_MAX_COUNTED = 20_000
_MAX_FREQUENCY = "SELECT max(docs) FROM words WHERE word >= ? AND word < ?"
#: All words in one text: a row for each would take four times as long.
_WITH_LENGTH = """
SELECT group_concat(word, ' ') FROM (
    SELECT word FROM words WHERE docs >= ? AND length(word) BETWEEN ? AND ? LIMIT ?
)
"""
_WITH_PREFIX = """
SELECT word, docs FROM words WHERE word > ? AND word < ? AND length(word) <= ? ORDER BY docs DESC, word LIMIT ?
"""
#: Words of a pack's vocabulary, and characters of a word: a pack has no more (app/pack/indexes.py).
_MAX_WORDS = 100_000
_MAX_WORD_LENGTH = 40


def first_matches(
    connection: sqlite3.Connection, match: str, *, hidden: Container[int], limit: int, last: int = 2**62
) -> list[int]:
    """Return at most `limit` pages up to the id `last` that match, unranked, without reading the others."""
    rows = connection.execute("SELECT rowid FROM pages_fts WHERE pages_fts MATCH ? AND rowid <= ?", (match, last))
    pages = list(islice((page for (page,) in rows if page not in hidden), limit))
    rows.close()
    return pages


def count_matches(
    connection: sqlite3.Connection, match: str, *, most: int = _MAX_COUNTED, table: str = "pages_fts"
) -> int:
    """Return the number of pages that match an FTS5 expression, hidden ones included, or `most` if there are more."""
    statement = f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {table} MATCH ? LIMIT ?)"  # noqa: S608 (ours)
    return int(connection.execute(statement, (match, most)).fetchone()[0])


def doc_frequency(connection: sqlite3.Connection, word: str) -> int:
    """Return the number of pages with a folded word; 0 for a rare word that the vocabulary leaves out."""
    return doc_frequencies(connection, (word,)).get(word, 0)


def doc_frequencies(connection: sqlite3.Connection, words: Collection[str]) -> dict[str, int]:
    """Return the number of pages with each of these folded words that is in the vocabulary."""
    placeholders = ", ".join("?" * len(words))
    rows = connection.execute(f"SELECT word, docs FROM words WHERE word IN ({placeholders})", tuple(words))  # noqa: S608 (ours)
    return {word: _docs(docs) for word, docs in rows}


def max_doc_frequency(connection: sqlite3.Connection, prefix: str) -> int:
    """Return the highest document frequency of the words with a prefix."""
    (most,) = connection.execute(_MAX_FREQUENCY, (prefix, prefix + AFTER_ALL)).fetchone()
    return _docs(most)


def completions(connection: sqlite3.Connection, prefix: str, *, limit: int) -> list[tuple[str, int]]:
    """Return longer words with a prefix and their document frequencies, the most frequent first."""
    rows = connection.execute(_WITH_PREFIX, (prefix, prefix + AFTER_ALL, _MAX_WORD_LENGTH, limit))
    return [(word, _docs(docs)) for word, docs in rows]


def _docs(value: object) -> int:
    """Return a document frequency, 0 for any other value: a foreign pack may have one."""
    return max(0, value) if isinstance(value, int) else 0


def words_of_length(connection: sqlite3.Connection, shortest: int, longest: int, *, least: int) -> list[str]:
    """Return the words of `shortest` to `longest` characters on at least `least` pages."""
    (text,) = connection.execute(_WITH_LENGTH, (least, shortest, longest, _MAX_WORDS)).fetchone()
    return str(text).split(" ") if text else []


def cut(column: str, length: int) -> str:
    """Return an SQL expression for the first `length` characters of a column, as text: a pack may be hostile."""
    return f"CAST(substr({column}, 1, {length}) AS TEXT)"


def read_rows(connection: sqlite3.Connection, columns: str, pages: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    """Yield the columns of each page, one row in memory at a time, in any order."""
    placeholders = ", ".join("?" * len(pages))
    yield from connection.execute(f"SELECT {columns} FROM pages WHERE id IN ({placeholders})", tuple(pages))  # noqa: S608 (ours)


def urls(connection: sqlite3.Connection, pages: Sequence[int]) -> tuple[str, ...]:
    """Return the URLs of the pages."""
    found = dict(read_rows(connection, f"id, {cut('url', 4_000)}", pages)) if pages else {}
    return tuple(found[page] for page in pages)
