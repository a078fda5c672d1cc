"""Columns of a pack that depend on other pages or on the language: anchor texts, and other forms of words."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any, Final

from app.pack import anchors
from app.text.languages import algorithm_of
from app.text.variants import remembered_variants

_ALL_NAMES: Final = "SELECT id, page_id, lang, title, headings, anchors, name_forms, inlinks FROM pages"
_NEXT_NAMES: Final = f"{_ALL_NAMES} WHERE id > ? ORDER BY id LIMIT 1000"
_CHANGED_NAMES: Final = f"{_ALL_NAMES} WHERE id IN (SELECT id FROM former_pages)"  # noqa: S608 (ours)
_LINKED_NAMES: Final = f"{_ALL_NAMES} WHERE page_id = ?"
_CHANGED_TEXTS: Final = """
SELECT id, lang, description, body, body_forms FROM pages WHERE id IN (SELECT id FROM former_pages)
"""
_UPDATE: Final = "UPDATE pages SET anchors = ?, name_forms = ?, inlinks = ? WHERE id = ?"


def join_all(database: sqlite3.Connection) -> None:
    """Bring anchor texts, numbers of linking pages and forms of names of all pages up to date."""
    last = 0
    is_common = anchors.common_texts(database).__contains__
    while rows := database.execute(_NEXT_NAMES, (last,)).fetchall():
        _join(database, rows, is_common)
        last = rows[-1][0]


def join_changed(database: sqlite3.Connection, linked: Iterable[str]) -> None:
    """Do the same for changed pages, and for pages whose links have changed: those with the ids `linked`.

    Texts of changed pages get their other forms of words, which a new database gets with its indexes.
    """
    variants = remembered_variants()
    for page, lang, description, body, former in database.execute(_CHANGED_TEXTS).fetchall():
        forms = variants[algorithm_of(lang)].of(f"{description}\n{body}")
        if forms != former:
            database.execute("UPDATE pages SET body_forms = ? WHERE id = ?", (forms, page))
    found = {row[0]: row for row in database.execute(_CHANGED_NAMES)}
    for page_id in linked:
        found |= {row[0]: row for row in database.execute(_LINKED_NAMES, (page_id,))}
    _join(database, found.values(), cache(partial(anchors.is_common, database)))


def _join(database: sqlite3.Connection, rows: Iterable[tuple[Any, ...]], is_common: Callable[[str], bool]) -> None:
    """Write what differs."""
    variants = remembered_variants()
    for page, page_id, lang, title, headings, *old in rows:
        texts, inlinks = anchors.joined(database, page_id, is_common)
        names = variants[algorithm_of(lang)].of(f"{title}\n{headings}\n{texts}")
        if [texts, names, inlinks] != old:
            database.execute(_UPDATE, (texts, names, inlinks, page))
