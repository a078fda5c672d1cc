"""Which pages of a pack searches may show, and the groups of identical pages of which one is shown."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from app.search.pack_tables import Copies, cut

_GROUPED = "SELECT id, shown_as FROM pages WHERE hidden AND shown_as <> 0"
_PATHS = f"SELECT id, {cut('path', 4_000)} FROM pages"  # noqa: S608 (ours)


@dataclass(frozen=True, slots=True)
class VisiblePages:
    """`hidden` are the pages that are no hits. `copies` are the other pages of each group, by the one that is shown.

    `shown_as` has the copy that is shown in place of a page whose path is hidden. The page itself is ranked, and is not
    in `hidden`: the pack has the stems and names of no copy.
    """

    hidden: frozenset[int]
    copies: Copies
    shown_as: Mapping[int, int] = field(default_factory=dict)

    def shown(self, pages: Iterable[int]) -> list[int]:
        """Return ranked pages as they are shown."""
        return [self.shown_as.get(page, page) for page in pages] if self.shown_as else list(pages)


def read_visible(connection: sqlite3.Connection, hidden: frozenset[int]) -> VisiblePages:
    """Return the pages of a pack that are shown without any setting of its site."""
    copies: dict[int, list[int]] = defaultdict(list)
    for page, shown in connection.execute(_GROUPED) if hidden else ():
        if shown not in hidden:
            copies[shown].append(page)
    return VisiblePages(hidden, {shown: tuple(sorted(pages)) for shown, pages in copies.items()})


def without_paths(connection: sqlite3.Connection, visible: VisiblePages, hides: Callable[[str], bool]) -> VisiblePages:
    """Return the visible pages without those whose path is hidden.

    Where the shown page of a group is hidden, the copy with the shortest path is shown.
    """
    paths: dict[int, str] = {}
    excluded = set()
    grouped = {*visible.copies, *chain.from_iterable(visible.copies.values())}
    for page, path in connection.execute(_PATHS):
        if hides(path):
            excluded.add(page)
        elif page in grouped:
            paths[page] = path
    hidden = set(visible.hidden | excluded)
    copies: dict[int, tuple[int, ...]] = {}
    shown_as: dict[int, int] = {}
    for shown, others in visible.copies.items():
        left = [page for page in others if page in paths]
        if shown in excluded and left:
            hidden.discard(shown)
            shown_as[shown] = min(left, key=lambda page: (paths[page].count("/"), len(paths[page]), page))
            shown = shown_as[shown]
            left.remove(shown)
        if left:
            copies[shown] = tuple(left)
    return VisiblePages(frozenset(hidden), copies, shown_as)
