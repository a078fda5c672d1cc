"""Of the versions of a page in several languages, show one: that in the visitor's language."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.search.contract import Version
from app.search.definitions import Definition
from app.search.pack_tables import Properties, urls
from app.search.visible import VisiblePages

#: Versions of a page that are read, since a hostile pack may have millions, and those that are shown.
_MAX_VERSIONS = 200
_MAX_SHOWN = 20
_VERSIONS = "SELECT id FROM pages WHERE versions = ? AND versions > 0 AND id <> ? LIMIT ?"


@dataclass(frozen=True, slots=True)
class Versions:
    """The pages that are versions of each other: those with one number in `properties.versions` that is not 0.

    `language` is that of the site's start page, for visitors without a preferred language among the versions.
    """

    properties: Properties
    language: str

    def preferred(self, pages: Iterable[int], languages: Sequence[str]) -> dict[int, int]:
        """Return the page that is shown for each page that has other versions among these pages."""
        groups: dict[int, list[int]] = defaultdict(list)
        numbers = self.properties.versions
        for page in pages:
            if group := numbers[page]:
                groups[group].append(page)
        rank = self.properties.language_rank([tag for tag in (*languages, self.language) if tag])
        return {page: min(group, key=rank) for group in groups.values() if len(group) > 1 for page in group}

    def definitions(self, found: Sequence[Definition], languages: Sequence[str]) -> tuple[Definition, ...]:
        """Return definitions, of each page those in one version."""
        shown = self.preferred(dict.fromkeys(each.page for each in found), languages)
        # In the place of the first version is the one that is shown.
        ordered: dict[int, list[Definition]] = defaultdict(list)
        for each in found:
            page = shown.get(each.page, each.page)
            ordered[page] += [each] if each.page == page else []
        return tuple(each for definitions in ordered.values() for each in definitions)

    def scores(self, scores: dict[int, float], pages: Sequence[int], languages: Sequence[str]) -> dict[int, float]:
        """Return the scores of pages, given best first: one version of each page, with the score of the first one."""
        shown = self.preferred(pages, languages)
        if not shown:
            return {page: scores[page] for page in pages}
        merged: dict[int, float] = {}
        for page in pages:
            merged.setdefault(shown.get(page, page), scores[page])
        return merged

    def others(self, connection: sqlite3.Connection, page: int, visible: VisiblePages) -> tuple[Version, ...]:
        """Return the other versions of a page that are shown, by language."""
        group = self.properties.versions[page]
        rows = connection.execute(_VERSIONS, (group, page, _MAX_VERSIONS)) if group else ()
        shown = visible.shown(other for (other,) in rows if other not in visible.hidden)
        found = sorted((self.properties.of("lang", other), other) for other in shown)[:_MAX_SHOWN]
        addresses = urls(connection, [other for _, other in found])
        return tuple(Version(lang=lang, url=url) for (lang, _), url in zip(found, addresses, strict=True))
