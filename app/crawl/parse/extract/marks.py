"""A page's text with marks at its elements, as both extractors write it, and the blocks that are read from it.

A mark is a text that an extractor inserts at both edges of an element. It begins with NUL, which is in no parsed text.
So one reading of the whole text, which is fast, shows in which element each part of it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from app.crawl.parse.extract import boilerplate, contract
from app.crawl.parse.extract.boilerplate import (
    IN_AN_ARTICLE,
    IN_BOILERPLATE,
    IN_HEADER,
    NO_SIGN,
    OWN,
    PlacedBlock,
    Sign,
    sign_of,
)
from app.storage.page_parts import BREADCRUMB, HEADINGS, LIST, MAX_TERM, MAX_TERMS, TEXT, Block, Term, body_of

Node = TypeVar("Node")

#: Elements that may have a mark.
MARKED: Final = contract.STRUCTURE | boilerplate.WITH_ATTRIBUTES

#: Between two texts that the edge of an element separates.
EDGE: Final = " \0 "
CLOSING: Final = "\0>"

#: Elements for which an anchor before them may be, and elements after an anchor that are looked at.
_NAMED_BY_ANCHOR: Final = frozenset({*contract.HEADINGS, contract.DEFINED, contract.ANCHORED})
_MAX_AFTER: Final = 8
#: Elements within a heading that are searched for an id. Headings may be nested in each other.
_MAX_WITHIN: Final = 20


class Mark(NamedTuple):
    """What an element says of its text: its kind, its region and parts of the page, and a heading's text and id."""

    kind: str = TEXT
    region: int = OWN
    heading: str = ""
    id: str = ""
    parts: int = 0


@dataclass(frozen=True, slots=True)
class Text:
    """The text of a page: all blocks, the headings outside of boilerplate, and the body, which is searched."""

    blocks: tuple[Block, ...]
    headings: tuple[Mark, ...]
    body: str

    @property
    def first_heading(self) -> str:
        """The first heading of the first level, for a page without a title."""
        return next((mark.heading for mark in self.headings if mark.kind == "h1"), "")


class Nodes(Protocol[Node]):
    """Reads the elements of one parser's tree."""

    def key(self, node: Node) -> int:
        """Return a number that only this element has."""

    def name(self, node: Node) -> str:
        """Return the name of an element, at least if it is in `MARKED` or one of the names of `contract`."""

    def attributes(self, node: Node) -> contract.Attributes:
        """Return the attributes of an element."""

    def id(self, node: Node) -> str:
        """Return the id of an element, or else the name of an anchor; empty where it has none."""

    def parent(self, node: Node) -> Node | None:
        """Return the element around an element."""

    def after(self, node: Node) -> Iterator[Node]:
        """Return the elements that begin after an element, in document order, as long as no text is before them."""

    def within(self, node: Node) -> Iterator[Node]:
        """Return the elements in an element, in document order."""

    def written(self, node: Node) -> str:
        """Return the text in an element as it is written: no space is added at the edges of elements."""

    def text(self, node: Node) -> str:
        """Return the text in an element with white space collapsed."""


def anchored(nodes: Nodes[Node], anchors: Iterable[tuple[contract.Attributes, Node]]) -> dict[int, tuple[str, Node]]:
    """Return the ids of anchors without text by the key of the element that each is for, with this element.

    It is the first heading, term or code after the anchor, if no text is between the two.
    """
    found: dict[int, tuple[str, Node]] = {}
    for attributes, node in anchors:
        if "href" in attributes or not (name := attributes.get("id") or attributes.get("name")) or nodes.text(node):
            continue
        for each in islice(nodes.after(node), _MAX_AFTER):
            if nodes.name(each) in _NAMED_BY_ANCHOR:
                found[nodes.key(each)] = name, each
                break
    return found


def terms_of(
    nodes: Nodes[Node],
    defined: Iterable[Node],
    by_anchor: Mapping[int, tuple[str, Node]],
    *,
    link_texts: Collection[str],
) -> tuple[Term, ...]:
    """Return the terms of definition lists, given as nodes, and those that an anchor is right before.

    `link_texts` are the texts of all links of the page.
    """
    found: dict[str, Term] = {}
    for node in defined:
        section = nodes.id(node) or by_anchor.get(nodes.key(node), ("",))[0]
        section = section or next(filter(None, map(nodes.id, islice(nodes.within(node), _MAX_WITHIN))), "")
        text = _term(nodes.written(node)) if section and section.isprintable() else ""
        if not text:
            continue
        if text in link_texts or text.rpartition(", ")[2] in link_texts:
            # An entry of an index, which is no term, ends with a link to another page.
            *_, last = (None, *(each for each in nodes.within(node) if nodes.name(each) == "a" and not nodes.id(each)))
            href = (nodes.attributes(last).get("href") or "") if last is not None else ""
            if last is not None and not href.startswith("#") and text.endswith(_term(nodes.written(last))):
                continue
        found.setdefault(section, Term(section, text))
    for section, node in by_anchor.values():
        if nodes.name(node) == contract.ANCHORED and (text := _term(nodes.written(node))):
            found.setdefault(section, Term(section, text))
    return tuple(found.values())[:MAX_TERMS]


def _term(text: str) -> str:
    """Return the text of a term without the permalink at its end, cut to its limit."""
    return contract.heading(contract.collapsed(text))[:MAX_TERM]


def section_ids(
    nodes: Nodes[Node], headings: Iterable[Node], by_anchor: Mapping[int, tuple[str, Node]]
) -> dict[int, str]:
    """Return the id of each heading's section, by the heading's key; empty where it has none.

    It is the heading's own id, or the first one within it, or that of the anchor before it. Else it is that of the
    nearest element that begins with the heading.
    """
    found = {}
    begun: set[int] = set()
    for heading in headings:
        above = ""
        parent = nodes.parent(heading)
        while parent is not None and nodes.key(parent) not in begun:
            begun.add(nodes.key(parent))
            above = above or nodes.id(parent)
            parent = nodes.parent(parent)
        within = islice(nodes.within(heading), _MAX_WITHIN)
        own = nodes.id(heading) or next(filter(None, map(nodes.id, within)), "")
        found[nodes.key(heading)] = own or by_anchor.get(nodes.key(heading), ("",))[0] or above
    return found


class Element(NamedTuple, Generic[Node]):
    """An element that may have a mark: the parser's node and its key, its name, and what its attributes say."""

    node: Node
    key: int
    name: str
    sign: Sign


def elements_of(nodes: Nodes[Node], named: Iterable[tuple[str, Node]]) -> list[Element[Node]]:
    """Return the elements that may have a mark. `named` are all those with a name in `MARKED`, in document order."""
    elements = []
    for name, node in named:
        sign = sign_of(name, nodes.attributes(node)) if name in boilerplate.WITH_ATTRIBUTES else NO_SIGN
        if sign is not NO_SIGN or name in contract.STRUCTURE:
            elements.append(Element(node, nodes.key(node), name, sign))
    return elements


def marks_of(
    nodes: Nodes[Node], elements: Sequence[Element[Node]], breadcrumb: Node | None, ids: Mapping[int, str]
) -> list[tuple[Node, Mark]]:
    """Return the elements to mark. `ids` are those of `section_ids`."""
    signs = {each.key: boilerplate.BY_NAME[each.name] for each in elements if each.name in boilerplate.BY_NAME}
    articles = [each.key for each in elements if each.name == boilerplate.ARTICLE]
    if len(articles) > 1:
        signs |= dict.fromkeys(articles, Sign(part=IN_AN_ARTICLE))
    by_attribute = [each for each in elements if each.sign is not NO_SIGN and each.key not in signs]
    if by_attribute:  # Elements around the page's own text are no boilerplate.
        outside = {key for key, sign in signs.items() if sign.region != OWN}
        own = [each.node for each in elements if each.name in boilerplate.NEVER_BOILERPLATE]
        own += [each.node for each in by_attribute if each.sign.part]
        around = _around(nodes, own, outside=outside)
        signs |= {each.key: each.sign for each in by_attribute if each.sign.part or each.key not in around}
    found = []
    for node, key, name, _ in elements:
        kind = BREADCRUMB if node is breadcrumb else contract.KINDS.get(name, TEXT)
        if kind == LIST and (parent := nodes.parent(node)) is not None and nodes.name(parent) == contract.ITEM:
            kind = TEXT
        region, part, _ = signs.get(key, NO_SIGN)
        if name == boilerplate.HEADER and region == OWN and not is_within(nodes, node, contract.MAIN):
            region = IN_HEADER
        if kind != TEXT or region != OWN or part:
            heading = contract.heading(nodes.text(node)) if name in contract.HEADINGS else ""
            found.append((node, Mark(kind, region, heading, ids.get(key, ""), part)))
    return found


def is_within(nodes: Nodes[Node], element: Node, names: Collection[str]) -> bool:
    """Return whether an element is in one with one of these names."""
    parent = nodes.parent(element)
    while parent is not None and nodes.name(parent) not in names:
        parent = nodes.parent(parent)
    return parent is not None


def _around(nodes: Nodes[Node], elements: Iterable[Node], *, outside: Collection[int]) -> set[int]:
    """Return the keys of all elements around the given ones that are not in elements with a key of `outside`."""
    is_outside = dict.fromkeys(outside, True)
    for element in elements:
        path = []
        parent = nodes.parent(element)
        while parent is not None and nodes.key(parent) not in is_outside:
            path.append(nodes.key(parent))
            parent = nodes.parent(parent)
        is_outside |= dict.fromkeys(path, parent is not None and is_outside[nodes.key(parent)])
    return {key for key, is_it in is_outside.items() if not is_it}


def opening(number: int) -> str:
    """Return the text that begins the element of a mark, given by its number."""
    return f"\0<{number}"


def read(marked: str, marks: Sequence[Mark], *, breadcrumb: str, links: Collection[str]) -> Text:
    """Return the text of a page. `links` are the texts of its links.

    The words of its breadcrumb name the sections above it: its body ends with them.
    """
    placed: list[PlacedBlock] = []
    #: Each with the number of its first block.
    headings: list[tuple[Mark, int]] = []
    lines: list[str] = []
    within, outer = Mark(), [Mark()]
    # Like every text, the first one has a space in front. The mark at the end ends the last block.
    for piece in f" {contract.without_permalinks(contract.collapsed(marked))}{CLOSING}".split("\0"):
        if piece[:1] not in ("<", ">"):
            if line := piece.strip(" "):
                lines.append(line)
            continue
        if lines:
            if within.heading and (last := contract.heading(lines[-1])) != lines[-1]:
                lines[-1:] = [last] if last.strip() else []
            placed.append(PlacedBlock(Block(tuple(lines), within.kind, within.id), within.region, within.parts))
            lines = []
        if piece[0] == ">":
            within = outer.pop()
        else:
            outer.append(within)
            mark = marks[int(piece[1:])]
            # What holds for the text around the element holds for its own: a list in a menu is boilerplate, too.
            kind = BREADCRUMB if within.kind == BREADCRUMB else mark.kind
            region, parts = max(within.region, mark.region), within.parts | mark.parts
            within = Mark(kind, region, mark.heading, mark.id, parts)
            if within.heading and within.region != IN_BOILERPLATE:
                headings.append((within, len(placed)))
    blocks = boilerplate.separated(placed, links)
    removed = {number for number, block in enumerate(blocks) if block.boilerplate}
    kept = [
        mark
        for mark, number in headings
        if number not in removed or mark.region == IN_HEADER or mark.kind == HEADINGS[0]
    ]
    body = body_of(blocks)
    if len(body) < boilerplate.MIN_TEXT:
        # A page with little text outside of its boilerplate is searched as a whole.
        body = body_of(blocks, boilerplate=True)
    else:
        body = f"{body} {contract.without_permalinks(breadcrumb)}".rstrip()
    return Text(blocks, tuple(kept), body)
