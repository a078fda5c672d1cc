"""Groups of identical pages: one page of each is shown, the others are hidden and counted as its copies.

Pages belong together by equal title and text, or by `canonical`, also if the page that it names is not in the pack.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T")

_COLUMNS: Final = "SELECT id, canonical_key, canonical, text_hash, inlinks, path, shown_as FROM pages"
#: Pages that may have others in their group: the others are alone.
_ROWS: Final = f"""
{_COLUMNS} WHERE canonical NOT IN ('', canonical_key)
OR canonical_key IN (SELECT canonical FROM pages WHERE canonical NOT IN ('', canonical_key))
OR text_hash IN (SELECT text_hash FROM pages WHERE text_hash <> 0 GROUP BY text_hash HAVING count(*) > 1)
ORDER BY id
"""  # noqa: S608 (ours)
_OF_KEY: Final = f"{_COLUMNS} WHERE canonical_key = ?"
_OF_CANONICAL: Final = f"{_COLUMNS} WHERE canonical = ? AND canonical <> ''"
_OF_TEXT: Final = f"{_COLUMNS} WHERE text_hash = ? AND text_hash <> 0"
#: What pages have, and had, that makes them a group with others.
_CHANGED: Final = """
SELECT canonical_key, canonical, text_hash FROM former_pages WHERE canonical_key IS NOT NULL
UNION SELECT canonical_key, canonical, text_hash FROM pages WHERE id IN (SELECT id FROM former_pages)
"""


class _PageRow(NamedTuple):
    id: int
    canonical_key: str
    canonical: str
    text_hash: int
    inlinks: int
    path: str
    shown_as: int


def hash_of(title: str, body: str) -> int:
    """Return the hash of a page's title and text as SQLite stores an integer; 0 for a page without text."""
    if not body:
        return 0
    digest = hashlib.blake2b(f"{title}\n{body}".encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, signed=True) or 1


def assign(database: sqlite3.Connection) -> None:
    """Find the groups of all pages of a new pack."""
    _assign(database, [_PageRow(*row) for row in database.execute(_ROWS)])


def assign_changed(database: sqlite3.Connection) -> None:
    """Bring the groups of changed pages up to date: those that they left, and those that they belong to."""
    found: dict[int, _PageRow] = {}
    keys: set[str] = set()
    texts: set[int] = set()
    unread: list[tuple[str, str, int]] = database.execute(_CHANGED).fetchall()
    while unread:
        key, canonical, text_hash = unread.pop()
        rows: list[tuple[Any, ...]] = []
        for name in {key, canonical} - keys - {""}:
            keys.add(name)
            rows += (*database.execute(_OF_KEY, (name,)), *database.execute(_OF_CANONICAL, (name,)))
        if text_hash not in texts:
            texts.add(text_hash)
            rows += database.execute(_OF_TEXT, (text_hash,))
        for row in (_PageRow(*columns) for columns in rows):
            if row.id not in found:
                found[row.id] = row
                unread.append((row.canonical_key, row.canonical, row.text_hash))
    _assign(database, [found[row] for row in sorted(found)])


def _assign(database: sqlite3.Connection, rows: list[_PageRow]) -> None:
    targets = targets_of({row.canonical_key: row.canonical for row in rows})
    # Pages with one target are a group. Groups in which pages have the same text are joined.
    leaders: dict[str, str] = {}
    first_with: dict[int, str] = {}
    for row in rows:
        if row.text_hash:
            same = first_with.setdefault(row.text_hash, targets[row.canonical_key])
            leaders[leader_of(targets[row.canonical_key], leaders)] = leader_of(same, leaders)
    groups: dict[str, list[_PageRow]] = defaultdict(list)
    for row in rows:
        groups[leader_of(targets[row.canonical_key], leaders)].append(row)
    shown: dict[int, int] = {}

    def preference(row: _PageRow) -> tuple[bool, int, bool, int, int, str]:
        """Order the pages of a group: canonical, most linked to, without a query, the shortest address."""
        key, path = row.canonical_key, row.path
        return (targets[key] != key, -row.inlinks, "?" in path, path.count("/"), len(path), key)

    for group in groups.values():
        best = min(group, key=preference)
        shown.update((row.id, best.id) for row in group if row is not best)
    changes = [(shown.get(row.id, 0), row.id in shown, row.id) for row in rows if shown.get(row.id, 0) != row.shown_as]
    database.executemany("UPDATE pages SET shown_as = ?, hidden = ? WHERE id = ?", changes)


def targets_of(canonical: Mapping[str, str]) -> dict[str, str]:
    """Follow `canonical` from page to page, and return the last key for each page. The work is linear in the pages.

    A page that leads to a ring of pages, or is in one, names itself.
    """
    #: The last key of each page that was followed; empty where it leads to a ring.
    ends: dict[str, str] = {}
    for key in canonical:
        chain: dict[str, None] = {}
        at = key
        while at not in ends and at not in chain:
            chain[at] = None
            following = canonical.get(at, "")
            if following in ("", at):
                ends[at] = at
            else:
                at = following
        ends |= dict.fromkeys(chain, ends.get(at, ""))
    return {key: ends[key] or key for key in canonical}


def leader_of(member: T, leaders: dict[T, T]) -> T:
    """Return the leader of a member's group: itself, or the one at the end of its chain of leaders.

    The chain becomes shorter: else a long one would be followed again and again.
    """
    while (above := leaders.get(member, member)) != member:
        leaders[member] = leaders.get(above, above)
        member = above
    return member
