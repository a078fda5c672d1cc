"""What all pages of a site determine together: its name, its languages, and the lines that many pages repeat.

A few changed pages hardly change it, and all pages depend on it. So it is determined again when a share of the pages
has changed.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass
from typing import Final

from app.pack import alternates
from app.text.languages import algorithm_of
from app.text.titles import site_names

#: Share of the pages that must have changed.
CHANGED_SHARE: Final = 0.05
#: Share of a pack's pages from which queries are stemmed by an algorithm, and the number of algorithms.
_LEAST_SHARE: Final = 0.05
_MAX_ALGORITHMS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteValues:
    """`stemmers` are the algorithms by which queries are stemmed: those of many pages."""

    site_name: str
    language: str
    stemmers: tuple[str, ...]

    def as_meta(self) -> dict[str, str]:
        """Return the entries of `meta`."""
        return {"site_name": self.site_name, "language": self.language, "stemmers": " ".join(self.stemmers)}


def determine(database: sqlite3.Connection) -> SiteValues:
    """Return the values by all rows."""
    counts = Counter(algorithm_of(lang) for (lang,) in database.execute("SELECT lang FROM pages"))
    least = _LEAST_SHARE * counts.total()
    frequent = (name for name, pages in counts.items() if name and pages >= least)
    return SiteValues(
        site_name=site_names(lambda: database.execute("SELECT title, lang FROM pages WHERE NOT hidden")),
        language=alternates.start_language(database),
        stemmers=tuple(sorted(frequent, key=lambda name: (-counts[name], name))[:_MAX_ALGORITHMS]),
    )


def in_meta(meta: dict[str, str]) -> SiteValues:
    """Return the values that a packer determined before."""
    return SiteValues(site_name=meta["site_name"], language=meta["language"], stemmers=tuple(meta["stemmers"].split()))


def are_due(changes: int, pages: int) -> bool:
    """Return whether enough pages have changed for the values to be determined again."""
    return changes >= CHANGED_SHARE * pages
