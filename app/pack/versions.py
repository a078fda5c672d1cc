"""Versions of one page in several languages: by their paths, and by the links between them."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

_ROWS: Final = "SELECT id, path, lang, hidden, shown_as, versions FROM pages ORDER BY id"
_ALTERNATES: Final = "SELECT id, url, key, lower(lang), alternates FROM pages"
_UPDATE: Final = "UPDATE pages SET versions = ? WHERE id = ?"
#: The languages of pages: that of the start page first, then that of most pages.
_LANGUAGES: Final = """
SELECT lower(lang) FROM pages WHERE lang <> '' AND NOT hidden
GROUP BY lower(lang) ORDER BY max(path IN ('/', '/index.html')) DESC, count(*) DESC, lang LIMIT 1
"""
#: Whether versions may differ after an update: they depend on no text.
_ARE_CONCERNED: Final = """
SELECT EXISTS (SELECT 1 FROM former_pages AS former LEFT JOIN pages USING (id)
WHERE former.path IS NOT pages.path OR former.lang IS NOT pages.lang OR former.url IS NOT pages.url
OR former.alternates IS NOT pages.alternates OR former.shown_as IS NOT pages.shown_as)
"""
#: Parts of a file's name, and those that say its encoding where another one says its language.
_DOT: Final = "."
_ENCODING: Final = re.compile(r"utf-?8|iso-?\d[\w-]*|euc-\w+|koi8-\w|gb2312|big5|shift_jis|windows-\d+", re.IGNORECASE)


def assign_changed(database: sqlite3.Connection) -> None:
    """Bring the versions of all pages up to date if an update changed what they depend on."""
    if database.execute(_ARE_CONCERNED).fetchone()[0]:
        assign(database)


def assign(database: sqlite3.Connection) -> None:
    """Bring the versions of all pages that are not hidden up to date. Equal rows are not written again.

    A page that is shown for others is a version by their paths and links, too.
    """
    rows = database.execute(_ROWS).fetchall()
    shown = {page: shown_as if hidden else page for page, _, _, hidden, shown_as, _ in rows}
    #: The shown pages by language, by the path without its language.
    by_path: dict[str, dict[str, int]] = defaultdict(dict)
    for page, path, lang, *_ in rows:
        if lang:
            by_path[without_language(path, lang)].setdefault(lang.lower(), shown[page])
    leaders: dict[int, int] = {}

    def leader(page: int) -> int:
        while (above := leaders.get(page, page)) != page:
            page = above
        return page

    for members in (*(pages.values() for pages in by_path.values()), *_linked(database, shown)):
        first, *others = sorted({leader(page) for page in members})
        leaders |= dict.fromkeys(others, first)
    sizes = Counter(leader(page) for page in set(shown.values()))
    found = {page: leader(page) for page in set(shown.values()) if sizes[leader(page)] > 1}
    changes = [(found.get(page, 0), page) for page, *_, versions in rows if found.get(page, 0) != versions]
    database.executemany(_UPDATE, changes)


def _linked(database: sqlite3.Connection, shown: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of pages in different languages that name each other as versions (`hreflang`).

    One that is named alone may be the start page, which some sites name on every page.
    """
    pages: dict[str, int] = {}
    alternates: dict[int, list[str]] = {}
    langs: dict[int, str] = {}
    for page, url, key, lang, urls in database.execute(_ALTERNATES):
        pages[url] = pages[key] = page
        langs[page] = lang
        if urls:
            alternates[page] = urls.split("\n")
    named = {page: {pages[url] for url in urls if url in pages} for page, urls in alternates.items()}
    for page, others in named.items():
        for other in others:
            if page in named.get(other, ()) and page < other and langs[page] != langs[other]:
                yield shown[page], shown[other]


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
