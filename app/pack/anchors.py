"""Anchor texts: what the links of a site's other pages call a page. They are joined when a pack is built.

A pack keeps the links of each page, so that an incremental pack joins them without reading unchanged pages.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from app.storage.layout import Page

#: Links of a page that are kept, and anchor texts of a page, with their characters together.
MAX_LINKS: Final = 2_000
MAX_TEXTS: Final = 60
MAX_CHARACTERS: Final = 3_000
#: Pages that one text leads to, beyond which it names none of them: "Next", "Up", "Source".
MAX_TARGETS: Final = 5
#: Bytes of a page's links, uncompressed: a limit against crafted packs.
_MAX_BYTES: Final = 16 * 2**20

_NOTE: Final = (
    "INSERT INTO links (object, anchors) VALUES (?, ?) ON CONFLICT (object) DO UPDATE SET anchors = excluded.anchors"
)


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


def joined(database: sqlite3.Connection) -> dict[int, tuple[str, int]]:
    """Return anchor texts and number of linking pages of each page that has some, by row id.

    The texts are lines, that of most pages first.
    """
    #: The pages that use each text and that lead there at all, by the row id of the page that is led to.
    texts: dict[int, Counter[str]] = defaultdict(Counter)
    linking: Counter[int] = Counter()
    for own, page, names in _links(database):
        if own != page:
            texts[page].update({name.partition("\t")[0] for name in names})
            linking[page] += 1
    targets = Counter(text for counts in texts.values() for text in counts)
    found = {}
    for page, counts in texts.items():
        named = [text for text in counts if targets[text] <= MAX_TARGETS]
        named.sort(key=lambda text: (-counts[text], text))
        found[page] = "\n".join(named[:MAX_TEXTS])[:MAX_CHARACTERS], linking[page]
    return found


def linked_names(database: sqlite3.Connection) -> dict[int, Counter[tuple[str, str]]]:
    """Return text and fragment of the links to each page, by its row id, and the number of other pages with each."""
    found: dict[int, Counter[tuple[str, str]]] = defaultdict(Counter)
    for own, page, names in _links(database):
        different = {(text, fragment) for text, _, fragment in (name.partition("\t") for name in names)}
        found[page].update(dict.fromkeys(different, int(own != page)))
    return found


def _links(database: sqlite3.Connection) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the texts of the links between pages of the pack: the row ids of both, and the texts."""
    rows: dict[str, int] = {}
    objects: dict[str, int] = {}
    for page, name, url, key in database.execute("SELECT id, object, url, key FROM pages"):
        rows[url] = rows[key] = objects[name] = page
    for name, packed in database.execute("SELECT object, CAST(anchors AS BLOB) FROM links"):
        try:
            links = zlib.decompressobj().decompress(packed, _MAX_BYTES).decode(errors="replace")
        except zlib.error:  # Others may write packs, too.
            continue
        for entry in links.split("\n\n"):
            url, *names = entry.split("\n")
            if names and (page := rows.get(url)) is not None:
                yield objects.get(name, 0), page, names
