"""The properties of all pages as arrays, which a searcher reads in one piece: it never reads every row."""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias

from app.errors import PackCorrupt
from app.search.number_arrays import LARGEST, packed, unpacked

#: Name, width and bytes of an array, and the values that its numbers stand for, as JSON.
_Stored: TypeAlias = tuple[str, str, bytes, str]

#: Characters of a value that are kept, as many as a filter may have, and different values of a property.
_MAX_SECTION, _MAX_LANG, _MAX_TYPE, _MAX_DATE = 200, 35, 127, 10
_MAX_VALUES: Final = {"section": 4_000, "lang": 500, "type": 500}
#: Row ids for each page up to which arrays are written: ids of removed pages are not used again before a full pack.
_MAX_IDS: Final = 64
_SPARE_IDS: Final = 64_000

#: SQLite looks up the lowest and the highest key, unless one query asks for both.
_EXTENT: Final = """
SELECT count(*), coalesce((SELECT min(id) FROM pages), 1), coalesce((SELECT max(id) FROM pages), 0) FROM pages
"""
_VALUES: Final = f"""
pages.id, pages.inlinks, pages.alternate_group, CASE WHEN pages.hidden THEN pages.shown_as ELSE 0 END,
CAST(substr(pages.section, 1, {_MAX_SECTION}) AS TEXT), CAST(substr(pages.lang, 1, {_MAX_LANG}) AS TEXT),
CAST(substr(pages.content_type, 1, {_MAX_TYPE}) AS TEXT), CAST(substr(pages.modified, 1, {_MAX_DATE}) AS TEXT)
"""
_ROWS: Final = f"SELECT {_VALUES} FROM pages ORDER BY id"  # noqa: S608 (ours)
_NUMBERS: Final = ("inlinks", "alternate_group", "hidden", "shown_as", "modified")
_TEXTS: Final = ("section", "lang", "content_type")
#: Ids of changed rows, and their properties, which are others than before; NULL for removed rows.
_CHANGED: Final = f"""
SELECT former.id, {_VALUES}
FROM former_pages AS former LEFT JOIN pages ON pages.id = former.id
WHERE {" OR ".join(f"former.{name} IS NOT pages.{name}" for name in (*_NUMBERS, *_TEXTS))}
ORDER BY former.id
"""  # noqa: S608 (ours)
_INSERT: Final = "INSERT INTO properties (name, width, numbers, texts) VALUES (?, ?, ?, ?)"
_STORED: Final = "SELECT name, width, numbers, texts FROM properties ORDER BY name"


class _Columns:
    """The arrays of numbers by their names, and the codes of the values that they stand for."""

    def __init__(self) -> None:
        names = ("inlinks", "alternate_group", "shown_as", "section", "lang", "type", "date")
        self._numbers = {name: array("I") for name in names}
        self._codes = {name: {"": 0} for name in _MAX_VALUES}

    def read(self, stored: Iterable[_Stored]) -> None:
        """Take over what a pack has stored."""
        for name, width, numbers, texts in stored:
            if name in self._numbers:
                self._numbers[name] = array("I", unpacked(width, numbers))
            if name in self._codes:
                self._codes[name] = {text: code for code, text in enumerate(json.loads(texts))}

    @property
    def are_complete(self) -> bool:
        """Whether each text has a code of its own."""
        return all(len(codes) < _MAX_VALUES[name] for name, codes in self._codes.items())

    def resize(self, last: int) -> None:
        """Have a number for every row id up to the last one."""
        for numbers in self._numbers.values():
            del numbers[last + 1 :]
            numbers.frombytes(bytes(numbers.itemsize * (last + 1 - len(numbers))))

    def note(self, values: Sequence[Any]) -> None:
        """Note the properties of one row."""
        page, inlinks, alternate_group, shown_as, section, lang, content_type, modified = values
        self._numbers["inlinks"][page] = min(max(0, inlinks), LARGEST)
        self._numbers["alternate_group"][page] = alternate_group
        self._numbers["shown_as"][page] = shown_as
        # 20261121 for `2026-11-21`, and 0 for an invalid date.
        day = modified.replace("-", "")
        self._numbers["date"][page] = int(day) if len(day) == 8 and day.isascii() and day.isdigit() else 0
        texts = {"section": section, "lang": lang.lower(), "type": content_type.partition(";")[0].strip().lower()}
        for name, text in texts.items():
            codes = self._codes[name]
            if text not in codes and len(codes) < _MAX_VALUES[name]:
                codes[text] = len(codes)
            # Beyond the limit, a new text counts as the empty one.
            self._numbers[name][page] = codes.get(text, 0)

    def forget(self, page: int) -> None:
        """Forget the properties of a removed row."""
        for numbers in self._numbers.values():
            numbers[page : page + 1] = array("I", [0] * len(numbers[page : page + 1]))

    def number_texts(self) -> None:
        """Give the texts that rows have the codes that they would get if all rows were noted again."""
        for name, codes in self._codes.items():
            texts, in_order = [*codes], dict.fromkeys(chain([0], self._numbers[name]))
            new = {former: code for code, former in enumerate(in_order)}
            self._numbers[name] = array("I", map(new.__getitem__, self._numbers[name]))
            self._codes[name] = {texts[former]: code for former, code in new.items()}

    def stored(self) -> Iterator[_Stored]:
        """Yield the arrays as they are stored.

        The last two are the pages that are not shown, in order of those that are shown for them, and these.
        """
        for name, numbers in self._numbers.items():
            yield _stored(name, numbers, self._codes.get(name, {}))
        hidden = sorted((shown, page) for page, shown in enumerate(self._numbers["shown_as"]) if shown)
        yield _stored("copies", [page for _, page in hidden])
        yield _stored("shown", [shown for shown, _ in hidden])


def write_properties(database: sqlite3.Connection) -> None:
    """Fill `properties` from all rows."""
    database.execute("DELETE FROM properties")
    database.executemany(_INSERT, _arrays(database))


def update_properties(database: sqlite3.Connection) -> None:
    """Bring `properties` up to date with changed rows. All rows are read only where there are too many texts."""
    changed = database.execute(_CHANGED).fetchall()
    if not changed:
        return
    columns, before = _Columns(), database.execute(_STORED).fetchall()
    columns.read(before)
    columns.resize(database.execute(_EXTENT).fetchone()[2])
    for page, own, *values in changed:
        if own is None:
            columns.forget(page)
        else:
            columns.note((page, *values))
    if columns.are_complete:
        columns.number_texts()
        differing = set(columns.stored()) - set(before)
        database.executemany("DELETE FROM properties WHERE name = ?", [(name,) for name, *_ in differing])
        database.executemany(_INSERT, sorted(differing))
    else:
        write_properties(database)


def are_ids_spent(database: sqlite3.Connection) -> bool:
    """Return whether there are too many row ids for the pages to write arrays of them."""
    rows, _, last = database.execute(_EXTENT).fetchone()
    return _are_spent(rows, last)


def check_properties(database: sqlite3.Connection, name: str) -> None:
    """Raise PackCorrupt unless `properties` has what `write_properties` writes. `name` is that of the pack's file."""
    try:
        differs = sorted(_arrays(database)) != database.execute(_STORED).fetchall()
    except (TypeError, ValueError, OverflowError) as error:
        raise PackCorrupt(f"{name}: a row has a property that no packer writes: {error}") from error
    if differs:
        raise PackCorrupt(f"{name}: its properties are not those of its rows")


def _arrays(database: sqlite3.Connection) -> Iterator[_Stored]:
    """Yield the arrays. Each but the last two has a number for every row id from 0 on."""
    rows, first, last = database.execute(_EXTENT).fetchone()
    if first < 1 or _are_spent(rows, last):
        raise ValueError(f"row ids from {first} to {last} for {rows} pages")
    columns = _Columns()
    columns.resize(last)
    for values in database.execute(_ROWS):
        columns.note(values)
    yield from columns.stored()


def _are_spent(rows: int, last: int) -> bool:
    return last > _MAX_IDS * rows + _SPARE_IDS


def _stored(name: str, numbers: Sequence[int], codes: Mapping[str, int] = {}) -> _Stored:
    return (name, *packed(numbers), json.dumps([*codes]))
