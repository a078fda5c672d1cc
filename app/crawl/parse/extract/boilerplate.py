"""Which elements and blocks of a page are boilerplate: menus, footers, teasers of other pages, lists of links.

Elements are known by their name, role or class. Some of these only hint at boilerplate. Then it counts how much
text would remain: a page of links, such as a table of contents, keeps them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from app.storage.page_parts import HEADINGS, LIST, TEXT, Block

#: Elements that are boilerplate. `header` is kept until the headings are read.
BOILERPLATE: Final = ("nav", "footer", "aside")
HEADER: Final = "header"
#: Landmark roles that are boilerplate (https://www.w3.org/TR/wai-aria-1.2/#landmark_roles), and classes that
#: documentation generators use for it, except where the element contains the page's own text or heading.
_ROLES: Final = frozenset({"navigation", "search", "complementary", "contentinfo"})
_CLASSES: Final = frozenset({
    "bottomNav", "breadcrumb", "breadcrumbs", "footer", "nav-panel", "navbar", "navfooter", "navheader", "navpath",
    "pagination", "sphinxsidebar", "subNav", "topNav",
})  # fmt: skip
#: Parts of classes that hint at boilerplate, in any case. An id would not do: in documentation it names a section.
_HINTS: Final = (
    "advert", "comment", "cookie", "copyright", "disqus", "dropdown", "footer", "login", "modal", "newsletter",
    "overlay", "popular", "promo", "recirc", "recommend", "related", "share", "sidebar", "social", "sponsor",
    "trending",
)  # fmt: skip
#: The same at the beginning of a class: site builders have `elementor-widget` around each paragraph.
_HINTS_IN_FRONT: Final = ("widget",)
_HINT: Final = re.compile("|".join((*_HINTS, *(rf"(?<!\S){part}" for part in _HINTS_IN_FRONT))))
#: Characters of an element's classes that are read.
_MAX_CLASSES: Final = 500

#: The breadcrumb names the sections above a page: its words are kept, after the page's own.
_BREADCRUMB_ELEMENTS: Final = frozenset({"div", "nav", "ol", "p", "table", "ul"})
_BREADCRUMB_CLASSES: Final = frozenset({"breadcrumb", "breadcrumbs", "navheader", "navpath"})
#: Elements whose attributes say what they are.
WITH_ATTRIBUTES: Final = frozenset({*_BREADCRUMB_ELEMENTS, "form", "section"})
#: Elements that contain one of these are no boilerplate.
NEVER_BOILERPLATE: Final = ("main", "article", "h1")

# Regions of a page's text, in the order in which an inner one counts. A heading in the page's header is a heading of
# the page; all other text of the header is boilerplate. The header of an article is a part of it.
OWN: Final = 0
HINTED: Final = 1
IN_HEADER: Final = 2
IN_BOILERPLATE: Final = 3

# Parts of a page that say what its own text is, each within the one before. They are added up. The only article of a
# page is its own. One of several may be a teaser of another page, or a comment.
IN_MAIN: Final = 1
IN_ONLY_ARTICLE: Final = 2
IN_AN_ARTICLE: Final = 4
IN_ARTICLE_BODY: Final = 8
ARTICLE: Final = "article"
_PARTS: Final = {"main": IN_MAIN, ARTICLE: IN_ONLY_ARTICLE}

#: Characters of own text below which all text of the page is taken as its own.
MIN_TEXT: Final = 50
#: Share of a page's text that must remain without what is outside of a part.
LEAST_OWN: Final = {IN_MAIN: 0.25, IN_ONLY_ARTICLE: 0.25, IN_AN_ARTICLE: 0.5, IN_ARTICLE_BODY: 0.25}
#: The same without what a class hints at.
LEAST_WITHOUT_HINTED: Final = 0.25
#: The same without lists of links.
LEAST_WITHOUT_LINKS: Final = 0.5
#: Links of a list of links, and their share of its characters.
_LEAST_LINKS: Final = 2
_LEAST_SHARE: Final = 0.5
_BETWEEN_LINKS: Final = "|"


class Sign(NamedTuple):
    """What an element says of the text in it.

    It is the text's region, the part of the page that begins with the element, or 0, and whether it is a breadcrumb.
    """

    region: int = OWN
    part: int = 0
    is_breadcrumb: bool = False


NO_SIGN: Final = Sign()
#: An element that is boilerplate whatever it contains, or the page's own text.
BY_NAME: Final = {name: Sign(IN_BOILERPLATE) for name in BOILERPLATE} | {
    name: Sign(part=part) for name, part in _PARTS.items()
}


def sign_of(name: str, attributes: Mapping[str, str | None]) -> Sign:
    """Return the sign of an element of `WITH_ATTRIBUTES`, except one of `BY_NAME`, which may be a breadcrumb only."""
    if not attributes:
        return NO_SIGN
    sign, role = _sign_of_classes((attributes.get("class") or "")[:_MAX_CLASSES]), attributes.get("role")
    if name in BOILERPLATE or role in _ROLES or sign.region == IN_BOILERPLATE:
        return Sign(IN_BOILERPLATE, is_breadcrumb=sign.is_breadcrumb and name in _BREADCRUMB_ELEMENTS)
    if role == "main":
        return Sign(part=IN_MAIN)
    if attributes.get("itemprop") == "articleBody":  # A property of https://schema.org/Article.
        return Sign(part=IN_ARTICLE_BODY)
    return sign


@lru_cache(maxsize=1_000)  # The elements of a page, and the pages of a site, have few different ones.
def _sign_of_classes(classes: str) -> Sign:
    names = classes.split()
    if not _CLASSES.isdisjoint(names):
        return Sign(IN_BOILERPLATE, is_breadcrumb=not _BREADCRUMB_CLASSES.isdisjoint(names))
    return Sign(HINTED) if _HINT.search(classes.lower()) else NO_SIGN


class PlacedBlock(NamedTuple):
    """A block, its region, and the sum of the parts that it is in."""

    block: Block
    region: int = OWN
    parts: int = 0


def separated(placed: Sequence[PlacedBlock], links: Collection[str]) -> tuple[Block, ...]:
    """Return all blocks of a page, each with whether it is boilerplate. `links` are the texts of the page's links."""
    lengths = [_length(each.block.lines) for each in placed]
    own = [number for number, each in enumerate(placed) if each.region <= HINTED]
    for part, least in LEAST_OWN.items():
        own = _or_all(own, [number for number in own if placed[number].parts & part], lengths, least=least)
    not_hinted = [number for number in own if placed[number].region == OWN]
    own = _or_all(own, not_hinted, lengths, least=LEAST_WITHOUT_HINTED)
    without_links = [number for number in own if not _is_list_of_links(placed[number].block, lengths[number], links)]
    own = _or_all(own, without_links, lengths, least=LEAST_WITHOUT_LINKS)
    blocks = [each.block for each in placed]
    kept = _without_empty_sections(blocks, own)
    return tuple(
        block if number in kept else Block(block.lines, block.kind, block.id, boilerplate=True)
        for number, block in enumerate(blocks)
    )


def _or_all(all_of: list[int], some: list[int], lengths: Sequence[int], *, least: float) -> list[int]:
    """Return some of these blocks, by their numbers, or all if their text is too short or less than this share."""
    if not some or len(some) == len(all_of):
        return all_of
    of_some, of_all = (sum(map(lengths.__getitem__, each)) for each in (some, all_of))
    return some if of_some >= max(MIN_TEXT, least * of_all) else all_of


def _is_list_of_links(block: Block, length: int, links: Collection[str]) -> bool:
    if block.kind not in (TEXT, LIST):
        return False
    found = [
        line
        for line in block.lines
        if line in links
        or (
            _BETWEEN_LINKS in line and all(text in links for text in map(str.strip, line.split(_BETWEEN_LINKS)) if text)
        )
    ]
    return len(found) >= _LEAST_LINKS and _length(found) >= _LEAST_SHARE * length


def _without_empty_sections(blocks: Sequence[Block], own: Iterable[int]) -> set[int]:
    """Return the numbers of own blocks without headings of sections that have boilerplate only.

    A heading of the first level names the page, whatever follows it.
    """
    kept = set(own)
    #: The levels of headings that would have own text, or boilerplate, in their section.
    with_own: set[int] = set()
    with_boilerplate: set[int] = set()
    for number in reversed(range(len(blocks))):
        kind = blocks[number].kind
        level = HEADINGS.index(kind) if kind in HEADINGS else len(HEADINGS)
        if number in kept and level in with_boilerplate - with_own - {0}:
            kept.discard(number)
        above = range(level)
        if number in kept:
            # Its section ends those of headings of the same level, and of lower ones.
            with_own, with_boilerplate = (levels.intersection(above) for levels in (with_own, with_boilerplate))
            with_own.update(above)
        else:
            with_boilerplate.update(above)
    return kept


def _length(lines: Iterable[str]) -> int:
    return sum(map(len, lines))
