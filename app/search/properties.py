"""What is kept in memory of every page of a pack: section, language, type and date, to filter, count and sort by."""

from __future__ import annotations

import sqlite3
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from app.search.contract import Facet, Filters

#: Values of a facet at most.
_VALUES = 10
#: Ids that a pack may leave out for each one that it has, before an array over all of them is a waste.
_SPARSE = 64

#: The index pages_properties has all of it.
_EVERY = "SELECT id, hidden, section, lang, content_type, modified FROM pages"

_Codes: TypeAlias = "array[int] | dict[int, int]"


@dataclass(frozen=True, slots=True)
class _Column:
    """One property: `codes` has for each page's id the place of its value among `values`; the first value is empty."""

    name: str
    values: tuple[str, ...]
    codes: _Codes

    def having(self, pages: Iterable[int], value: str) -> list[int]:
        """Return those of the pages that have the value."""
        if value not in self.values:
            return []
        code, codes = self.values.index(value), self.codes
        return [page for page in pages if codes[page] == code]

    def count(self, pages: Iterable[int]) -> tuple[tuple[str, int], ...]:
        """Return how many of the pages have each value, most first, pages without one not counted."""
        counts = Counter(map(self.codes.__getitem__, pages))
        counts.pop(0, None)
        named = ((self.values[code], number) for code, number in counts.items())
        return tuple(sorted(named, key=lambda pair: (-pair[1], pair[0])))


class Properties:
    """The properties of all pages of a pack."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Read them."""
        rows = connection.execute(_EVERY).fetchall()
        self.hidden = frozenset(row[0] for row in rows if row[1])
        ids = [row[0] for row in rows]
        columns = (
            _column("section", ids, [row[2] for row in rows]),
            _column("lang", ids, [row[3].lower() for row in rows]),
            _column("type", ids, [_media_type(row[4]) for row in rows]),
        )
        self._columns = {column.name: column for column in columns}
        self._days = _numbers(ids, [_day(row[5]) for row in rows])

    def admitted(self, pages: Sequence[int], filters: Filters, *, but: str = "") -> Sequence[int]:
        """Return those of the pages that every filter admits, that of `but` left out of account."""
        for name, column in self._columns.items():
            value = _wanted(filters, name)
            if value and name != but:
                pages = column.having(pages, value)
        return pages

    def facets(self, pages: Sequence[int], filters: Filters) -> tuple[Facet, ...]:
        """Count the pages by each property, the filters of the others applied; properties that divide none left out."""
        counted = (
            Facet(name=name, counts=column.count(self.admitted(pages, filters, but=name)))
            for name, column in self._columns.items()
            if len(column.values) > 2
        )
        return tuple(Facet(name=each.name, counts=each.counts[:_VALUES]) for each in counted if len(each.counts) > 1)

    def newest_first(self, pages: Iterable[int]) -> list[int]:
        """Return the pages by date, those without one last, of equal dates in the order given."""
        return sorted(pages, key=self._days.__getitem__, reverse=True)

    def of(self, name: str, page: int) -> str:
        """Return the value of a property, `section`, `lang` or `type`, of a page."""
        column = self._columns[name]
        return column.values[column.codes[page]]


def _wanted(filters: Filters, name: str) -> str:
    value: str = getattr(filters, name)
    return value if name == "section" else value.lower()


def _column(name: str, ids: Sequence[int], found: Sequence[str]) -> _Column:
    places = {"": 0}
    codes = [places.setdefault(value, len(places)) for value in found]
    return _Column(name, tuple(places), _numbers(ids, codes))


def _numbers(ids: Sequence[int], numbers: Sequence[int]) -> _Codes:
    """Return what has each number at its page's id."""
    last = max(ids, default=0)
    if last > _SPARSE * (len(ids) + 1_000) or min(ids, default=0) < 0:
        return dict(zip(ids, numbers, strict=True))
    held = array("l", bytes(array("l").itemsize * (last + 1)))
    for page, number in zip(ids, numbers, strict=True):
        held[page] = number
    return held


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _day(modified: str) -> int:
    """Return 20261121 for `2026-11-21`, and 0 for what is no date."""
    digits = modified[:10].replace("-", "")
    return int(digits) if len(digits) == 8 and digits.isascii() and digits.isdigit() else 0
