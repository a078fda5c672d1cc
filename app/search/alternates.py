"""Of the alternates of a page, the same page in other languages, show the one in the visitor's language."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.search.contract import Alternate
from app.search.definitions import Definition
from app.search.pack_tables import urls
from app.search.properties import Properties
from app.search.visible import VisiblePages

#: Alternates of a page that are read, since a hostile pack may have millions, and those that are shown.
_MAX_ALTERNATES = 200
_MAX_SHOWN = 20
_ALTERNATES = "SELECT id FROM pages WHERE alternate_group = ? AND alternate_group > 0 AND id <> ? LIMIT ?"


@dataclass(frozen=True, slots=True)
class Alternates:
    """The pages that are alternates of each other: those with one number in `properties.alternate_groups`, not 0.

    `language` is that of the site's start page, for visitors without a preferred language among the alternates.
    """

    properties: Properties
    language: str

    def preferred(self, pages: Iterable[int], languages: Sequence[str]) -> dict[int, int]:
        """Return the page that is shown for each page that has alternates among these pages."""
        groups: dict[int, list[int]] = defaultdict(list)
        numbers = self.properties.alternate_groups
        for page in pages:
            if group := numbers[page]:
                groups[group].append(page)
        rank = self.properties.language_rank([tag for tag in (*languages, self.language) if tag])
        return {page: min(group, key=rank) for group in groups.values() if len(group) > 1 for page in group}

    def definitions(self, found: Sequence[Definition], languages: Sequence[str]) -> tuple[Definition, ...]:
        """Return definitions, of a page and its alternates those of one."""
        shown = self.preferred(dict.fromkeys(each.page for each in found), languages)
        # In the place of the first alternate is the one that is shown.
        ordered: dict[int, list[Definition]] = defaultdict(list)
        for each in found:
            page = shown.get(each.page, each.page)
            ordered[page] += [each] if each.page == page else []
        return tuple(each for definitions in ordered.values() for each in definitions)

    def scores(self, scores: dict[int, float], pages: Sequence[int], languages: Sequence[str]) -> dict[int, float]:
        """Return the scores of pages, given best first: of alternates one, with the score of the first one."""
        shown = self.preferred(pages, languages)
        if not shown:
            return {page: scores[page] for page in pages}
        merged: dict[int, float] = {}
        for page in pages:
            merged.setdefault(shown.get(page, page), scores[page])
        return merged

    def others(self, connection: sqlite3.Connection, page: int, visible: VisiblePages) -> tuple[Alternate, ...]:
        """Return the alternates of a page that are shown, by language."""
        group = self.properties.alternate_groups[page]
        rows = connection.execute(_ALTERNATES, (group, page, _MAX_ALTERNATES)) if group else ()
        shown = visible.shown(other for (other,) in rows if other not in visible.hidden)
        found = sorted((self.properties.of("lang", other), other) for other in shown)[:_MAX_SHOWN]
        addresses = urls(connection, [other for _, other in found])
        return tuple(Alternate(lang=lang, url=url) for (lang, _), url in zip(found, addresses, strict=True))
