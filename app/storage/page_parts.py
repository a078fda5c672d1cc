"""Parts of a stored page that better packs can be built from: text blocks, links and hashes; JSON form and limits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import chain
from typing import Any, Final, NamedTuple

from app.text.anchor_texts import MAX_ANCHORS

#: Kinds of a block that are no heading. Text of a header, footer or menu has one of them, too.
TEXT: Final = "text"
LIST: Final = "list"
TABLE: Final = "table"
CODE: Final = "code"
BREADCRUMB: Final = "breadcrumb"
HEADINGS: Final = ("h1", "h2", "h3", "h4", "h5", "h6")
KINDS: Final = frozenset({TEXT, LIST, TABLE, CODE, BREADCRUMB, *HEADINGS})

#: Blocks of a page, characters of a section's id, links of a page, and characters of an anchor text.
MAX_BLOCKS: Final = 5_000
MAX_ID: Final = 200
MAX_LINKS: Final = 100_000
MAX_ANCHOR: Final = 200

#: Terms of a page, and characters of one.
MAX_TERMS: Final = 5_000
MAX_TERM: Final = 200

#: Bytes of a hash. Even among 10^12 texts, two equal hashes of different texts are unlikely.
_HASH_SIZE: Final = 16


class Block(NamedTuple):
    """Lines of a page that belong together; between two lines is the edge of a paragraph, a list item or a cell."""

    lines: tuple[str, ...]
    kind: str = TEXT
    #: Where a browser finds the section of this heading: the fragment of its URL. Else empty.
    id: str = ""
    #: Whether the lines are not the page's own text: a menu, a footer, a list of links.
    boilerplate: bool = False


class Term(NamedTuple):
    """A term that a page defines outside of its headings: the fragment of the page's URL that leads to it, its text."""

    id: str
    text: str


class PageLink(NamedTuple):
    """A link that the crawl follows: the absolute URL of a page in scope, and its texts on this page, one a line.

    A text that is the name of a section is followed by a tab and the section's fragment.
    """

    url: str
    text: str = ""


def body_of(blocks: Iterable[Block], *, boilerplate: bool = False) -> str:
    """Return the lines of the blocks as one text, those of boilerplate only on demand."""
    return " ".join([line for block in blocks if boilerplate or not block.boilerplate for line in block.lines])


def hash_of(text: str) -> str:
    """Return the hash of a text, whose white space extraction has normalised; empty for an empty text."""
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=_HASH_SIZE).hexdigest() if text else ""


# JSON


def blocks_to_json(blocks: Iterable[Block], body: str) -> list[dict[str, Any]]:
    """Return the JSON form of blocks. A line that comes next in `body` is stored as its length.

    So the text of a page is stored once.
    """
    stored, position = [], 0
    for block in blocks:
        lines: list[str | int] = []
        for line in block.lines:
            if not block.boilerplate and body.startswith(line, position):
                lines.append(len(line))
                position += len(line) + 1
            else:
                lines.append(line)
        entry: dict[str, Any] = {}
        if block.boilerplate:
            entry["boilerplate"] = True
        if block.id:
            entry["id"] = block.id
        if block.kind != TEXT:
            entry["kind"] = block.kind
        entry["lines"] = lines
        stored.append(entry)
    return stored


def blocks_from_json(stored: Iterable[dict[str, Any]], body: str) -> tuple[Block, ...]:
    """Read the output of `blocks_to_json`; raises KeyError, TypeError and AttributeError for anything else."""
    blocks, position = [], 0
    for entry in stored:
        lines: list[str] = []
        for line in entry["lines"]:
            if isinstance(line, int):
                end = position + line
                line, position = body[position:end], end + 1
            lines.append(line)
        blocks.append(Block(tuple(lines), entry.get("kind", TEXT), entry.get("id", ""), bool(entry.get("boilerplate"))))
    _check_text(chain.from_iterable((*block.lines, block.kind, block.id) for block in blocks))
    return tuple(blocks)


def headings_from_json(stored: Iterable[dict[str, Any]], body: str) -> tuple[Block, ...]:
    """Return the headings that have an id, outside of boilerplate; raises as `blocks_from_json` does."""
    headings: list[Block] = []
    position = 0
    for entry in stored:
        begin = position
        for line in entry["lines"]:
            if isinstance(line, int):
                position += line + 1
        if "id" in entry and entry.get("kind") in HEADINGS and not entry.get("boilerplate"):
            headings.extend(blocks_from_json((entry,), body[begin:position]))
    return tuple(headings)


def links_to_json(links: Iterable[PageLink], origin: str) -> list[list[str]]:
    """Return the JSON form of links. A URL of the same scheme and host, `origin`, is stored from its path on."""
    start = f"{origin}/"
    return [[link.url[len(origin) :] if link.url.startswith(start) else link.url, link.text] for link in links]


def links_from_json(stored: Iterable[list[str]], origin: str) -> tuple[PageLink, ...]:
    """Read the output of `links_to_json`; raises TypeError, ValueError and AttributeError for anything else."""
    links = tuple(PageLink(origin + url if url.startswith("/") else url, text) for url, text in stored)
    _check_text(link.text for link in links)
    return links


def terms_from_json(stored: Iterable[list[str]]) -> tuple[Term, ...]:
    """Read the JSON form of terms, which is their texts; raises TypeError and ValueError for anything else."""
    terms = tuple(Term(section, text) for section, text in stored)
    _check_text(part for term in terms for part in term)
    return terms


def _check_text(values: Iterable[Any]) -> None:
    values = [*values]
    try:
        "".join(values)  # It checks a page's thousands of values many times faster than a loop.
    except TypeError:
        other = next(value for value in values if not isinstance(value, str))
        raise TypeError(f"{other!r:.100} is not a string") from None


# Limits


def bounded_blocks(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Return at most `MAX_BLOCKS` blocks, of kinds that exist, without an id that is too long to be one."""

    def bounded(block: Block) -> Block:
        kind, section = block.kind, block.id
        if kind in KINDS and len(section) <= MAX_ID:
            return block
        return block._replace(kind=kind if kind in KINDS else TEXT, id=section if len(section) <= MAX_ID else "")

    return tuple(map(bounded, blocks[:MAX_BLOCKS]))


def bounded_terms(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Return at most `MAX_TERMS` terms with their texts cut, without an id that is too long to be one."""
    return tuple(Term(term.id, term.text[:MAX_TERM]) for term in terms[:MAX_TERMS] if len(term.id) <= MAX_ID)


def bounded_links(links: tuple[PageLink, ...], *, max_url: int) -> tuple[PageLink, ...]:
    """Return at most `MAX_LINKS` links with their texts cut, without URLs of more than `max_url` characters."""
    return tuple(
        link if len(link.text) <= MAX_ANCHORS else PageLink(link.url, link.text[:MAX_ANCHORS])
        for link in links[:MAX_LINKS]
        if len(link.url) <= max_url
    )
