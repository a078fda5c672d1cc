"""Versions of one page in several languages: pages whose paths are equal but for the part that names the language."""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from typing import Final

_ROWS: Final = "SELECT id, path, lang, hidden, shown_as, versions FROM pages ORDER BY id"
_UPDATE: Final = "UPDATE pages SET versions = ? WHERE id = ?"
#: The languages of pages: that of the start page first, then that of most pages.
_LANGUAGES: Final = """
SELECT lower(lang) FROM pages WHERE lang <> '' AND NOT hidden
GROUP BY lower(lang) ORDER BY max(path IN ('/', '/index.html')) DESC, count(*) DESC, lang LIMIT 1
"""
#: Parts of a file's name, and those that say its encoding where another one says its language.
_DOT: Final = "."
_ENCODING: Final = re.compile(r"utf-?8|iso-?\d[\w-]*|euc-\w+|koi8-\w|gb2312|big5|shift_jis|windows-\d+", re.IGNORECASE)


def assign(database: sqlite3.Connection) -> None:
    """Bring the versions of all pages that are not hidden up to date. Equal rows are not written again.

    A page that is shown for others is a version by their paths, too.
    """
    rows = database.execute(_ROWS).fetchall()
    langs = {page: lang.partition("-")[0].lower() for page, _, lang, *_ in rows}
    #: The shown pages by language, by the path without its language.
    by_path: dict[str, dict[str, int]] = defaultdict(dict)
    for page, path, lang, hidden, shown_as, _ in rows:
        by_path[without_language(path, lang)].setdefault(langs[page], shown_as if hidden else page)
    found: dict[int, int] = {}
    for pages in by_path.values():
        members = set(pages.values())
        if "" not in pages and len({langs.get(page) for page in members}) > 1:
            first = min(found.get(page, page) for page in members)
            found |= dict.fromkeys(members, first)
    changes = [(found.get(page, 0), page) for page, *_, versions in rows if found.get(page, 0) != versions]
    database.executemany(_UPDATE, changes)


def start_language(database: sqlite3.Connection) -> str:
    """Return the language of the start page, or else of most pages; empty if they have none."""
    row = database.execute(_LANGUAGES).fetchone()
    return str(row[0]) if row else ""


def without_language(path: str, lang: str) -> str:
    """Return a path without the folder, or the part of its file's name, that is the language of the page."""
    tag = lang.lower()
    names = {tag, tag.partition("-")[0]} - {""}
    *folders, file = path.split("/")
    at = next((at for at, folder in enumerate(folders) if folder.lower().replace("_", "-") in names), None)
    if at is not None:
        return "/".join((*folders[:at], *folders[at + 1 :], file))
    parts = file.split(_DOT)
    if any(part.lower().replace("_", "-") in names for part in parts[1:]):
        kept = [
            part for part in parts[1:] if part.lower().replace("_", "-") not in names and not _ENCODING.fullmatch(part)
        ]
        return "/".join((*folders, _DOT.join((parts[0], *kept))))
    return path
