"""Lines that a site repeats on many pages, such as menus and notices: they are left out of the text that is searched.

A pack keeps the hashes of each page's lines, so that an incremental pack counts them without reading unchanged pages.
"""

from __future__ import annotations

import sqlite3
import struct
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from app.storage.layout import Page
from app.storage.page_parts import BREADCRUMB, CODE, HEADINGS, body_of
from app.text.lines import OTHER, SENTENCE, ended, spaced, without_ends

#: Share and number of pages with different texts on which a line must be to count as repeated, and to remain so. The
#: difference keeps a few changed pages from changing the texts of all others.
LEAST_SHARE: Final = 0.4
LEAST_PAGES: Final = 8
KEPT_SHARE: Final = 0.35
KEPT_PAGES: Final = 7
#: Pages among which a repeated line is on at least two, as long as they are not chosen by content: 0.6^63 is 1e-14.
_SAMPLE: Final = 128
_NOTE: Final = (
    "INSERT INTO lines (page_id, hashes, removed) VALUES (?, ?, ?) "
    "ON CONFLICT (page_id) DO UPDATE SET hashes = excluded.hashes, removed = excluded.removed"
)
_ALL: Final = "SELECT page_id, CAST(hashes AS BLOB), CAST(removed AS BLOB) FROM lines"
#: In order of page ids, which are hashes of addresses.
_DISTINCT: Final = "SELECT DISTINCT CAST(hashes AS BLOB) FROM lines"


def lines_of(page: Page) -> list[str]:
    """Return the lines of a page's body, those of its blocks and what follows them, each with what ends it."""
    for boilerplate in (False, True):
        text = body_of(page.blocks, boilerplate=boilerplate)
        if text and page.body.startswith(text):
            blocks = [block for block in page.blocks if boilerplate or not block.boilerplate]
            if spaced(text) != text:  # Very few pages have a character that ends lines.
                blocks = [block._replace(lines=(*map(spaced, block.lines),)) for block in blocks]
            rest = without_ends(page.body[len(text) :]).strip(" ")
            lines = []
            for block in blocks:
                is_heading, may_be_sentence = block.kind in HEADINGS, block.kind not in (CODE, BREADCRUMB)
                lines += ended(block.lines, is_heading=is_heading, may_be_sentence=may_be_sentence)
            return lines + [rest + OTHER] * bool(rest)
    return [without_ends(page.body) + SENTENCE] if page.body else []


def note_lines(database: sqlite3.Connection, page_id: str, hashes: bytes, removed: bytes) -> None:
    """Keep in the pack the hashes of a page's lines, and of those that its body lacks, as `without` returns them."""
    database.execute(_NOTE, (page_id, hashes, removed))


def find(database: sqlite3.Connection, former: frozenset[int] = frozenset()) -> frozenset[int]:
    """Return the hashes of the lines that many pages repeat. Pages with the same lines count as one.

    `former` are those that the former pack left out.
    """
    # A site has millions of lines. Those on two pages of a sample are few.
    in_sample, _ = _counted(database.execute(f"{_DISTINCT} LIMIT ?", (_SAMPLE,)))
    candidates = former.union(line for line, number in in_sample.items() if number > 1)
    counts, pages = _counted(database.execute(_DISTINCT), among=candidates)
    least, least_kept = max(LEAST_PAGES, LEAST_SHARE * pages), max(KEPT_PAGES, KEPT_SHARE * pages)
    return frozenset(line for line, number in counts.items() if number >= (least_kept if line in former else least))


def differing(database: sqlite3.Connection, repeated: frozenset[int]) -> list[str]:
    """Return the ids of the pages whose body lacks other lines than it should."""
    return [
        page_id
        for page_id, hashes, removed in database.execute(_ALL)
        if removed != _packed(repeated.intersection(_unpacked(hashes)))
    ]


def without(lines: Collection[str], repeated: frozenset[int]) -> tuple[str, bytes, bytes]:
    """Return the text of the lines without those that are repeated; the hashes of all lines, and of the repeated ones.

    Where there are no others, the text has the repeated ones.
    """
    # SQLite stores numbers of this size. A site has millions of lines, so no line takes a step of Python's.
    hashes = [*map(zlib.crc32, map(str.encode, lines))]
    removed = repeated.intersection(hashes)
    own = [line for line, hashed in zip(lines, hashes, strict=True) if hashed not in removed] if removed else lines
    return "".join(own or lines), _packed(hashes), _packed(removed)


def as_meta(lines: frozenset[int]) -> dict[str, str]:
    """Return the entry of `meta` for the hashes of repeated lines."""
    return {"repeated_lines": " ".join(map(str, sorted(lines)))}


def in_meta(meta: Mapping[str, str]) -> frozenset[int]:
    """Return the hashes of the repeated lines that a packer found before."""
    return frozenset(map(int, meta["repeated_lines"].split()))


def _counted(pages: Iterable[tuple[bytes]], *, among: frozenset[int] | None = None) -> tuple[Counter[int], int]:
    """Return on how many of the pages each line is, and the number of the pages."""
    counts: Counter[int] = Counter()
    number = 0
    for number, (hashes,) in enumerate(pages, 1):  # noqa: B007 - It is the number of the pages after the loop.
        lines = _unpacked(hashes)
        counts.update(lines if among is None else among.intersection(lines))
    return counts, number


def _packed(hashes: Iterable[int]) -> bytes:
    """Return different hashes as bytes, sorted."""
    different = sorted(set(hashes))
    return struct.pack(f"<{len(different)}I", *different)


def _unpacked(packed: bytes) -> tuple[int, ...]:
    """Return the hashes that `_packed` packed; some numbers for anything else: others may write packs, too."""
    number = len(packed) // 4
    return struct.unpack_from(f"<{number}I", packed)
