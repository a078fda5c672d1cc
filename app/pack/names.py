"""What the pages of a pack are called: titles, without what all of them repeat, and headings."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterable
from typing import Final

#: Between the parts of a title: "os - Interfaces | The Site".
SEPARATOR: Final = re.compile(r"\s+[|–—·:»-]\s+")
#: Fewer pages than this do not tell what their titles have in common.
FEW: Final = 5

_NAMED: Final = "SELECT id, title, headings FROM pages WHERE NOT hidden"


def note_names(database: sqlite3.Connection) -> None:
    """Index titles and headings of all pages that are not hidden, each page by its id."""
    site = _site_name(title for _, title, _ in database.execute(_NAMED))
    named = ((page, _own_title(title, site), headings) for page, title, headings in database.execute(_NAMED))
    database.execute("DELETE FROM names")
    database.executemany("INSERT INTO names (rowid, title, headings) VALUES (?, ?, ?)", named)
    database.execute("INSERT INTO names (names) VALUES ('optimize')")


def _site_name(titles: Iterable[str]) -> str:
    """Return what more than half of the titles begin or end with, set off by a separator; else an empty string."""
    pages = 0
    ends: Counter[str] = Counter()
    for title in titles:
        pages += 1
        parts = SEPARATOR.split(title)
        if len(parts) > 1:
            ends.update({parts[0], parts[-1]})
    name, number = max(ends.items(), key=lambda pair: pair[1], default=("", 0))
    return name if pages >= FEW and 2 * number > pages else ""


def _own_title(title: str, site: str) -> str:
    parts = SEPARATOR.split(title)
    if not site or len(parts) == 1 or site not in (parts[0], parts[-1]):
        return title
    found = list(SEPARATOR.finditer(title))
    return title[: found[-1].start()] if parts[-1] == site else title[found[0].end() :]
