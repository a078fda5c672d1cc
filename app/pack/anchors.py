"""Anchor texts: what the links of a site's other pages call a page.

A pack keeps the links of each page, and for each address the texts of the links that lead there with the numbers of
pages. So an incremental pack reads the links of changed pages only, and joins the texts of the pages that they lead to.
Other forms of the words in names are written with them.
"""

from __future__ import annotations

import hashlib
import sqlite3
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, lru_cache, partial
from typing import Any, Final, TypeAlias

from app.storage.layout import Page
from app.text.languages import algorithm_of
from app.text.variants import remembered_variants

#: Links of a page that are kept, and anchor texts of a page, with their characters together.
MAX_LINKS: Final = 2_000
MAX_TEXTS: Final = 60
MAX_CHARACTERS: Final = 3_000
#: Pages that one text leads to, beyond which it names none of them: "Next", "Up", "Source".
MAX_TARGETS: Final = 5
#: Bytes of a page's links, uncompressed: a limit against crafted packs.
_MAX_BYTES: Final = 16 * 2**20
#: Different link texts that are counted in memory before they are written.
_MAX_COUNTED: Final = 20_000

_NOTE: Final = (
    "INSERT INTO links (page_id, anchors) VALUES (?, ?) ON CONFLICT (page_id) DO UPDATE SET anchors = excluded.anchors"
)
_ALL_LINKS: Final = "SELECT url, canonical_key, CAST(links.anchors AS BLOB) FROM links JOIN pages USING (page_id)"
_CHANGED_LINKS: Final = """
SELECT former.url, former.canonical_key, CAST(former_links.anchors AS BLOB),
    pages.url, pages.canonical_key, CAST(links.anchors AS BLOB)
FROM former_links LEFT JOIN former_pages AS former USING (page_id)
LEFT JOIN pages USING (page_id) LEFT JOIN links USING (page_id)
"""
#: Former URL and key, present URL and key of a row; NULL if the row is new or removed.
_MOVED: Final = """
SELECT page_id, former.url, former.canonical_key, pages.url, pages.canonical_key
FROM former_pages AS former LEFT JOIN pages USING (page_id)
WHERE former.url IS NOT pages.url OR former.canonical_key IS NOT pages.canonical_key
"""
_NOTE_ADDRESS: Final = "INSERT INTO addresses (address, is_other, page_id) VALUES (?, ?, ?)"
_COUNT: Final = """
INSERT INTO link_texts (target, text, fragment, pages, first_of_text, first_of_page, own) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (target, text, fragment) DO UPDATE SET pages = pages + excluded.pages,
    first_of_text = first_of_text + excluded.first_of_text, first_of_page = first_of_page + excluded.first_of_page,
    own = own + excluded.own
"""
_FORGET: Final = "DELETE FROM link_texts WHERE target = ? AND text = ? AND fragment = ? AND pages <= 0 AND own <= 0"
#: Link texts with the pages that their addresses lead to: one that is the key of another page leads there.
_LEADING: Final = """
FROM addresses AS own JOIN link_texts ON target = own.address
WHERE NOT EXISTS (
    SELECT 1 FROM addresses AS other
    WHERE other.address = own.address AND (other.is_other, other.page_id) < (own.is_other, own.page_id)
)
"""
_JOINED: Final = f"SELECT text, sum(first_of_text), sum(first_of_page) {_LEADING} AND own.page_id = ? GROUP BY text"
_NAMES: Final = f"SELECT text, fragment, sum(pages) {_LEADING} AND own.page_id = ? GROUP BY text, fragment"
_COMMON: Final = f"SELECT text {_LEADING} AND first_of_text > 0 GROUP BY text HAVING count(DISTINCT own.page_id) > ?"
_TEXTS: Final = "SELECT DISTINCT text FROM link_texts WHERE target = ?"
_TARGETS: Final = "SELECT DISTINCT target FROM link_texts WHERE text = ? AND first_of_text > 0"
_PAGE_IDS: Final = "SELECT page_id FROM addresses WHERE address = ? ORDER BY is_other, page_id"

#: Rows with the columns that depend on links, and with the texts of changed pages.
_ALL_NAMES: Final = "SELECT id, page_id, lang, title, headings, anchors, name_forms, inlinks FROM pages"
_NEXT_NAMES: Final = f"{_ALL_NAMES} WHERE id > ? ORDER BY id LIMIT 1000"
_CHANGED_NAMES: Final = f"{_ALL_NAMES} WHERE id IN (SELECT id FROM former_pages)"  # noqa: S608 (ours)
_LINKED_NAMES: Final = f"{_ALL_NAMES} WHERE page_id = ?"
_CHANGED_TEXTS: Final = """
SELECT id, lang, description, body, body_forms FROM pages WHERE id IN (SELECT id FROM former_pages)
"""
_WRITE_JOINED: Final = "UPDATE pages SET anchors = ?, name_forms = ?, inlinks = ? WHERE id = ?"

#: What identifies a URL: 64 bits of its hash.
LinkAddress: TypeAlias = int
#: Text and fragment of the links to a page, with the number of other pages that have each.
Names: TypeAlias = "Counter[tuple[str, str]]"

#: The last four columns of `link_texts`, by its first three: target, text and fragment.
_Counts: TypeAlias = dict[tuple[LinkAddress, str, str], list[int]]
#: How many pages have an entry of `packed_links`, those of other pages and those of the pages that they lead to.
_Counted: TypeAlias = "tuple[Counter[str], Counter[str]]"


@lru_cache(maxsize=20_000)
def address_of(url: str) -> LinkAddress:
    """Return what identifies a URL."""
    digest = hashlib.blake2b(url.encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def note_links(database: sqlite3.Connection, page_id: str, page: Page) -> None:
    """Keep the links of a page in the pack."""
    database.execute(_NOTE, (page_id, packed_links(page)))


def packed_links(page: Page) -> bytes:
    """Return the links of a page that have a text, compressed: an entry of lines for each, its URL and its texts.

    Of the links within the page, those are kept that name a section.
    """
    named = (
        f"{link.url}\n{link.text}" for link in page.links if link.text and (link.url != page.url or "\t" in link.text)
    )
    lines = [entry for entry, _ in zip(named, range(MAX_LINKS), strict=False)]
    return zlib.compress("\n\n".join(lines).encode(errors="replace"), 1)


def count_all(database: sqlite3.Connection) -> None:
    """Count the link texts of all pages of a new pack."""
    rows = database.execute("SELECT page_id, url, canonical_key FROM pages")
    database.executemany(_NOTE_ADDRESS, (address for row in rows for address in _addresses(*row)))
    counted: _Counted = Counter(), Counter()
    for url, key, links in database.execute(_ALL_LINKS):
        _count(counted, url, key, links)
        if sum(map(len, counted)) > _MAX_COUNTED:
            _write(database, _link_texts(counted))
            counted = Counter(), Counter()
    _write(database, _link_texts(counted))


def count_changed(database: sqlite3.Connection) -> tuple[set[str], dict[str, Names]]:
    """Count the link texts of changed pages again.

    Return the page ids of rows whose anchor texts may differ now, and what links called pages whose links differ.
    """
    entries: _Counted = Counter(), Counter()
    for former_url, former_key, former_links, url, key, links in database.execute(_CHANGED_LINKS).fetchall():
        if former_links is not None:
            # A row that links of its own page alone changed has no former row.
            _count(entries, former_url or url, former_key or key, former_links, times=-1)
        if links is not None:
            _count(entries, url, key, links)
    counted = {link: counts for link, counts in _link_texts(entries).items() if any(counts)}
    moved = database.execute(_MOVED).fetchall()
    arrived = {address for _, *urls in moved for address in map(address_of, filter(None, urls))}
    targets = arrived | {target for target, _, _ in counted}
    texts = {text for _, text, _ in counted}
    texts |= {text for target in arrived for (text,) in database.execute(_TEXTS, (target,))}
    concerned = {page for target in targets for page in _page_ids(database, target)}
    former_names = {page: names_of(database, page) for page in concerned}
    was_common = {text: is_common(database, text) for text in texts}
    for page_id, _, _, url, key in moved:
        database.execute("DELETE FROM addresses WHERE page_id = ?", (page_id,))
        if url is not None and key is not None:
            database.executemany(_NOTE_ADDRESS, _addresses(page_id, url, key))
    _write(database, counted)
    for text, common in was_common.items():
        if is_common(database, text) != common:
            targets.update(target for (target,) in database.execute(_TARGETS, (text,)))
    concerned |= {page for target in targets for page in _page_ids(database, target)}
    return concerned, former_names


def _common_texts(database: sqlite3.Connection) -> frozenset[str]:
    """Return the texts that lead to over MAX_TARGETS pages. To look up each of them takes ten times as long."""
    return frozenset(text for (text,) in database.execute(_COMMON, (MAX_TARGETS,)))


def is_common(database: sqlite3.Connection, text: str) -> bool:
    """Return whether a text leads to over MAX_TARGETS pages."""
    pages: set[str] = set()
    for (target,) in database.execute(_TARGETS, (text,)):
        pages.update(_page_ids(database, target)[:1])
        if len(pages) > MAX_TARGETS:
            return True
    return False


def join_all(database: sqlite3.Connection) -> None:
    """Bring anchor texts, numbers of linking pages and forms of names of all pages up to date."""
    last = 0
    common = _common_texts(database)
    while rows := database.execute(_NEXT_NAMES, (last,)).fetchall():
        _join(database, rows, common.__contains__)
        last = rows[-1][0]


def join_changed(database: sqlite3.Connection, linked: Iterable[str]) -> None:
    """Do the same for changed pages, and for pages whose links have changed: those with the ids `linked`.

    Texts of changed pages get their other forms of words, which a new database gets with its indexes.
    """
    variants = remembered_variants()
    for page, lang, description, body, former in database.execute(_CHANGED_TEXTS).fetchall():
        forms = variants[algorithm_of(lang)].of(f"{description}\n{body}")
        if forms != former:
            database.execute("UPDATE pages SET body_forms = ? WHERE id = ?", (forms, page))
    found = {row[0]: row for row in database.execute(_CHANGED_NAMES)}
    for page_id in linked:
        found |= {row[0]: row for row in database.execute(_LINKED_NAMES, (page_id,))}
    _join(database, found.values(), cache(partial(is_common, database)))


def _join(database: sqlite3.Connection, rows: Iterable[tuple[Any, ...]], is_common: Callable[[str], bool]) -> None:
    """Write what differs. `is_common` returns whether a text leads to over MAX_TARGETS pages."""
    variants = remembered_variants()
    for page, page_id, lang, title, headings, *old in rows:
        texts, inlinks = _joined(database, page_id, is_common)
        names = variants[algorithm_of(lang)].of(f"{title}\n{headings}\n{texts}")
        if [texts, names, inlinks] != old:
            database.execute(_WRITE_JOINED, (texts, names, inlinks, page))


def _joined(database: sqlite3.Connection, page_id: str, is_common: Callable[[str], bool]) -> tuple[str, int]:
    """Return the anchor texts of a page, one a line, that of most pages first; and the number of linking pages."""
    found = database.execute(_JOINED, (page_id,)).fetchall()
    named = sorted((-pages, text) for text, pages, _ in found if pages > 0 and not is_common(text))
    return "\n".join(text for _, text in named[:MAX_TEXTS])[:MAX_CHARACTERS], sum(first for *_, first in found)


def names_of(database: sqlite3.Connection, page_id: str) -> Names:
    """Return text and fragment of the links to a page, and the number of other pages with each."""
    return Counter({(text, fragment): pages for text, fragment, pages in database.execute(_NAMES, (page_id,))})


def _count(counted: _Counted, url: str, key: str, packed: bytes, *, times: int = 1) -> None:
    """Add the entries of one page, which has this URL and key, or take them away."""
    others, own = counted
    try:
        entries = zlib.decompressobj().decompress(packed, _MAX_BYTES).decode(errors="replace").split("\n\n")
    except zlib.error:  # Others may write packs, too.
        entries = []
    own_entries = [entry for entry in entries if entry.startswith((f"{url}\n", f"{key}\n"))]
    if times < 0:
        others.subtract(entries)
    else:
        others.update(entries)
    for entry in own_entries:
        others[entry] -= times
        own[entry] += times


def _link_texts(counted: _Counted) -> _Counts:
    """Return the counts of each link text. Many pages have equal entries, so each different one is read once."""
    others, own = counted
    counts: _Counts = {}
    for entry in others:
        pages, own_pages = others[entry], own[entry]
        url, *names = entry.split("\n")
        address, before = address_of(url), None
        different = {(text, fragment) for text, _, fragment in (name.partition("\t") for name in names)}
        for text, fragment in sorted(different):
            link = counts.setdefault((address, text, fragment), [0, 0, 0, 0])
            link[0] += pages
            link[1] += pages if text != before else 0
            link[2] += pages if before is None else 0
            link[3] += own_pages
            before = text
    return counts


def _write(database: sqlite3.Connection, counted: _Counts) -> None:
    database.executemany(_COUNT, ((*link, *counted[link]) for link in sorted(counted)))
    database.executemany(_FORGET, (link for link, counts in counted.items() if min(counts) < 0))


def _addresses(page_id: str, url: str, key: str) -> list[tuple[LinkAddress, bool, str]]:
    own = [(address_of(key), False, page_id)]
    return own if url == key else [*own, (address_of(url), True, page_id)]


def _page_ids(database: sqlite3.Connection, address: LinkAddress) -> list[str]:
    return [page_id for (page_id,) in database.execute(_PAGE_IDS, (address,))]
