"""Which pages of a pack searches may show, and the groups of identical pages of which one is shown."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from app.search.pack_tables import cut
from app.search.properties import CopiesByPage, Properties

_PATHS = f"SELECT id, {cut('path', 4_000)} FROM pages"  # noqa: S608 (ours)


class HiddenPages:
    """The pages that are no hits: those of a group that are not shown, and `excluded` ones."""

    def __init__(self, shown_as: Sequence[int], excluded: Container[int] = frozenset()) -> None:
        """`shown_as` has a number by row id that is not 0 for each page of a group that is not shown."""
        self._shown_as, self._excluded = shown_as, excluded

    def __contains__(self, page: object) -> bool:
        return isinstance(page, int) and (self._shown_as[page] != 0 or page in self._excluded)


@dataclass(frozen=True, slots=True)
class VisiblePages:
    """`hidden` are the pages that are no hits. `copies` are the other pages of each group, by the one that is shown.

    `shown_as` has the copy that is shown in place of a page whose path is hidden. The page itself is ranked, and is not
    in `hidden`: the pack has the stems and names of no copy. It is in `unnamed`: no name of it may be shown.
    """

    hidden: Container[int]
    copies: CopiesByPage
    unnamed: Container[int]
    shown_as: Mapping[int, int] = field(default_factory=dict)

    def shown(self, pages: Iterable[int]) -> list[int]:
        """Return ranked pages as they are shown."""
        return [self.shown_as.get(page, page) for page in pages] if self.shown_as else list(pages)


def all_visible(properties: Properties) -> VisiblePages:
    """Return the pages of a pack that are shown without any setting of its site."""
    hidden: Container[int] = HiddenPages(properties.shown_as) if properties.copies else frozenset()
    return VisiblePages(hidden, properties.copies, hidden)


def without_paths(connection: sqlite3.Connection, properties: Properties, hides: Callable[[str], bool]) -> VisiblePages:
    """Return the visible pages of a pack without those whose path is hidden.

    Where the shown page of a group is hidden, the copy with the shortest path is shown.
    """
    stored = properties.copies
    paths: dict[int, str] = {}
    excluded = set()
    grouped = {*stored, *chain.from_iterable(stored.values())}
    for page, path in connection.execute(_PATHS):
        if hides(path):
            excluded.add(page)
        elif page in grouped:
            paths[page] = path
    copies: dict[int, tuple[int, ...]] = {}
    shown_as: dict[int, int] = {}
    for shown, others in stored.items():
        left = [page for page in others if page in paths]
        if shown in excluded and left:
            shown_as[shown] = min(left, key=lambda page: (paths[page].count("/"), len(paths[page]), page))
            shown = shown_as[shown]
            left.remove(shown)
        if left:
            copies[shown] = tuple(left)
    hidden, unnamed = (HiddenPages(properties.shown_as, each) for each in (excluded - shown_as.keys(), excluded))
    return VisiblePages(hidden, copies, unnamed, shown_as)
