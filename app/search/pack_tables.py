"""Read a pack's tables: matches, vocabulary and rows by statements, and the properties of all pages in memory."""

from __future__ import annotations

import sqlite3
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from app.search.contract import Facet, Filters

# Statements

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


# Properties

#: Values of one facet, at most.
_VALUES = 10
#: Ids per page up to which an array over all ids is used. Beyond that a dictionary needs less memory.
_SPARSE = 64

#: The index pages_properties covers this statement.
_EVERY = "SELECT id, hidden, section, lang, content_type, modified FROM pages"

_Codes: TypeAlias = "array[int] | dict[int, int]"


@dataclass(frozen=True, slots=True)
class _Column:
    """One property. `codes` maps a page's id to the index of its value in `values`, whose first value is empty."""

    name: str
    values: tuple[str, ...]
    codes: _Codes

    def having(self, pages: Iterable[int], value: str) -> list[int]:
        """Return the pages that have the value."""
        if value not in self.values:
            return []
        code, codes = self.values.index(value), self.codes
        return [page for page in pages if codes[page] == code]

    def count(self, pages: Iterable[int]) -> tuple[tuple[str, int], ...]:
        """Return the number of pages with each value, most pages first, without the empty value."""
        counts = Counter(map(self.codes.__getitem__, pages))
        counts.pop(0, None)
        named = ((self.values[code], number) for code, number in counts.items())
        return tuple(sorted(named, key=lambda pair: (-pair[1], pair[0])))


class Properties:
    """The properties of all pages of a pack."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Read the properties."""
        rows = connection.execute(_EVERY).fetchall()
        self.hidden = frozenset(row[0] for row in rows if row[1])
        ids = [row[0] for row in rows]
        columns = (
            _column("section", ids, [row[2] for row in rows]),
            _column("lang", ids, [row[3].lower() for row in rows]),
            _column("type", ids, [row[4].partition(";")[0].strip().lower() for row in rows]),
        )
        self._columns = {column.name: column for column in columns}
        self._days = _numbers(ids, [_day(row[5]) for row in rows])

    def filtered(self, pages: Sequence[int], filters: Filters, *, ignoring: str = "") -> Sequence[int]:
        """Return the pages that pass every filter, except the filter of `ignoring`, which is ignored."""
        for name, column in self._columns.items():
            value: str = getattr(filters, name)
            if name != "section":  # Languages and types are stored in lower case.
                value = value.lower()
            if value and name != ignoring:
                pages = column.having(pages, value)
        return pages

    def facets(self, pages: Sequence[int], filters: Filters) -> tuple[Facet, ...]:
        """Count the pages by each property with the filters of the others; leave out properties with one value."""
        counted = (
            Facet(name=name, counts=column.count(self.filtered(pages, filters, ignoring=name)))
            for name, column in self._columns.items()
            if len(column.values) > 2
        )
        return tuple(Facet(name=each.name, counts=each.counts[:_VALUES]) for each in counted if len(each.counts) > 1)

    def newest_first(self, pages: Iterable[int]) -> list[int]:
        """Return the pages by date, undated pages last. Pages of one date keep their order."""
        return sorted(pages, key=self._days.__getitem__, reverse=True)

    def of(self, name: str, page: int) -> str:
        """Return the value of a property, `section`, `lang` or `type`, of a page."""
        column = self._columns[name]
        return column.values[column.codes[page]]


def _column(name: str, ids: Sequence[int], found: Sequence[str]) -> _Column:
    places = {"": 0}
    codes = [places.setdefault(value, len(places)) for value in found]
    return _Column(name, tuple(places), _numbers(ids, codes))


def _numbers(ids: Sequence[int], numbers: Sequence[int]) -> _Codes:
    """Return a mapping from each page's id to its number."""
    last = max(ids, default=0)
    if last > _SPARSE * (len(ids) + 1_000) or min(ids, default=0) < 0:
        return dict(zip(ids, numbers, strict=True))
    held = array("l", bytes(array("l").itemsize * (last + 1)))
    for page, number in zip(ids, numbers, strict=True):
        held[page] = number
    return held


def _day(modified: str) -> int:
    """Return 20261121 for `2026-11-21`, and 0 for an invalid date."""
    digits = modified[:10].replace("-", "")
    return int(digits) if len(digits) == 8 and digits.isascii() and digits.isdigit() else 0
