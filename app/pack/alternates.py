"""Alternates, which are one page in several languages: by their paths, and by the links between them."""

from __future__ import annotations

import re
import sqlite3
from itertools import chain, groupby
from operator import itemgetter
from typing import Final

from app.pack.groups import leader_of

#: Pages in a language: of each language at each path without its language the one with the shortest path, with the page
#: that is shown. Row ids are in another order after an update.
_BY_PATH: Final = """
INSERT OR IGNORE INTO temp.by_path
SELECT without_language(path, lang), lower(lang), CASE WHEN hidden THEN shown_as ELSE id END
FROM pages WHERE lang <> '' AND (SELECT count(DISTINCT lower(lang)) FROM pages WHERE lang <> '') > 1
ORDER BY length(path), path
"""
_OF_PATHS: Final = """
SELECT path, page FROM temp.by_path
WHERE path IN (SELECT path FROM temp.by_path GROUP BY path HAVING count(*) > 1) ORDER BY path
"""
#: The URLs of pages that name alternates, and which of them each one names.
_URLS: Final = """
INSERT OR REPLACE INTO temp.urls
SELECT url, id FROM pages WHERE alternates <> '' UNION ALL SELECT canonical_key, id FROM pages WHERE alternates <> ''
"""
_ALTERNATES: Final = "SELECT id, alternates FROM pages WHERE alternates <> ''"
_NAME: Final = "INSERT OR IGNORE INTO temp.named SELECT ?, page FROM temp.urls WHERE url = ?"
_LINKED: Final = """
SELECT CASE WHEN one.hidden THEN one.shown_as ELSE one.id END, CASE WHEN two.hidden THEN two.shown_as ELSE two.id END
FROM temp.named AS own JOIN temp.named AS back ON back.page = own.other AND back.other = own.page
JOIN pages AS one ON one.id = own.page JOIN pages AS two ON two.id = own.other
WHERE own.page < own.other AND lower(one.lang) <> lower(two.lang)
"""
_TABLES: Final = {
    "by_path": "path, lang, page INTEGER, PRIMARY KEY (path, lang)",
    "urls": "url PRIMARY KEY, page INTEGER",
    "named": "page INTEGER, other INTEGER, PRIMARY KEY (page, other)",
}
_UPDATE: Final = "UPDATE pages SET alternate_group = ? WHERE id = ?"
#: The languages of pages: that of the start page first, then that of most pages.
_LANGUAGES: Final = """
SELECT lower(lang) FROM pages WHERE lang <> '' AND NOT hidden
GROUP BY lower(lang) ORDER BY max(path IN ('/', '/index.html')) DESC, count(*) DESC, lang LIMIT 1
"""
#: Whether groups of alternates may differ after an update: they depend on no text.
_ARE_CONCERNED: Final = """
SELECT EXISTS (SELECT 1 FROM former_pages AS former LEFT JOIN pages USING (id)
WHERE former.path IS NOT pages.path OR former.lang IS NOT pages.lang OR former.url IS NOT pages.url
OR former.alternates IS NOT pages.alternates OR former.shown_as IS NOT pages.shown_as)
"""
#: Parts of a file's name, and those that say its encoding where another one says its language.
_DOT: Final = "."
_ENCODING: Final = re.compile(r"utf-?8|iso-?\d[\w-]*|euc-\w+|koi8-\w|gb2312|big5|shift_jis|windows-\d+", re.IGNORECASE)


def assign_changed(database: sqlite3.Connection) -> None:
    """Bring the groups of alternates of all pages up to date if an update changed what they depend on."""
    if database.execute(_ARE_CONCERNED).fetchone()[0]:
        assign(database)


def assign(database: sqlite3.Connection) -> None:
    """Bring the groups of alternates of all pages that are not hidden up to date. Equal rows are not written again.

    A page that is shown for others is an alternate by their paths and links, too. What has no alternate is not held in
    memory.
    """
    leaders: dict[int, int] = {}
    for table, columns in _TABLES.items():
        database.execute(f"CREATE TEMP TABLE {table} ({columns}) WITHOUT ROWID")
    # Pages in different languages that have the same path but for their languages.
    database.create_function("without_language", 2, without_language, deterministic=True)
    database.execute(_BY_PATH)
    of_paths = ([page for _, page in rows] for _, rows in groupby(database.execute(_OF_PATHS), key=itemgetter(0)))
    # Pairs that name each other (`hreflang`): one that is named alone may be the start page, which some sites name on
    # every page.
    database.execute(_URLS)
    named = ((page, url) for page, urls in database.execute(_ALTERNATES) for url in urls.split("\n"))
    database.executemany(_NAME, named)
    for members in chain(of_paths, database.execute(_LINKED)):
        first, *others = sorted({leader_of(page, leaders) for page in members})
        leaders |= dict.fromkeys(others, first)
    for table in _TABLES:
        database.execute(f"DROP TABLE temp.{table}")
    found = {page: leader_of(page, leaders) for page in {*leaders, *leaders.values()}}
    former = dict(database.execute("SELECT id, alternate_group FROM pages WHERE alternate_group > 0"))
    differing = [page for page in {*found, *former} if found.get(page, 0) != former.get(page, 0)]
    database.executemany(_UPDATE, ((found.get(page, 0), page) for page in sorted(differing)))


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
