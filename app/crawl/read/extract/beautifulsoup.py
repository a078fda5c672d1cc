"""Extraction with BeautifulSoup: slower than lexbor, used for documents that lexbor rejects and to compare with it."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import cast

from bs4 import BeautifulSoup, MarkupResemblesLocatorWarning, Tag, XMLParsedAsHTMLWarning
from bs4.element import PreformattedString

from app.crawl.read.extract import boilerplate, contract, marks, visible
from app.crawl.read.extract.contract import Extract


class BeautifulSoupExtractor:
    """Extracts with BeautifulSoup on top of the parser named `features`."""

    def __init__(self, features: str = "lxml") -> None:
        self._features = features

    def extract(self, document: str) -> Extract:
        """Return the content of the document."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", XMLParsedAsHTMLWarning)  # XHTML served as HTML is parsed as HTML.
            warnings.simplefilter("ignore", MarkupResemblesLocatorWarning)  # A page may be one word.
            soup = BeautifulSoup(
                document.replace("\0", "").encode("utf-8", "replace").decode(),
                self._features,
                multi_valued_attributes=None,
            )
        without_frames = next((tag.get_text() for tag in _tags(soup, ("noframes",))), "")
        return visible.with_text_instead_of_frames(_extract(soup), without_frames, self)


class _SoupNodes:
    """Reads the tags of BeautifulSoup."""

    def key(self, node: Tag) -> int:
        return id(node)

    def name(self, node: Tag) -> str:
        return node.name

    def attributes(self, node: Tag) -> contract.Attributes:
        return _attributes(node)

    def id(self, node: Tag) -> str:
        attributes = _attributes(node)
        return attributes.get("id") or (node.name == "a" and attributes.get("name")) or ""

    def parent(self, node: Tag) -> Tag | None:
        return node.parent

    def after(self, node: Tag) -> Iterator[Tag]:
        for each in node.next_elements:
            if isinstance(each, Tag):
                yield each
            elif not isinstance(each, PreformattedString) and not str(each).isspace():
                return

    def within(self, node: Tag) -> Iterator[Tag]:
        return (each for each in node.descendants if isinstance(each, Tag))

    def written(self, node: Tag) -> str:
        return "".join(node.find_all(string=True))

    def text(self, node: Tag) -> str:
        # Every string, also those of elements that BeautifulSoup would not count as text, such as <ruby>'s.
        return contract.collapsed("".join(node.find_all(string=True)).replace("\0", " "))


_NODES = _SoupNodes()


def _extract(soup: BeautifulSoup) -> Extract:
    _remove(soup, ("template", "noframes"))  # Browsers do not show their content.
    linking = [(tag.name, _attributes(tag), tag) for tag in _tags(soup, contract.LINKS)]
    links, nofollow = contract.links_to_follow(linking, _anchor)
    link_texts = contract.texts_of(links)
    by_anchor = marks.anchored(_NODES, ((attributes, tag) for name, attributes, tag in linking if name == "a"))
    description, robots = contract.description_and_directives(map(_attributes, _tags(soup, ("meta",))))
    base = next((_attributes(tag) for tag in _tags(soup, ("base",)) if tag.has_attr("href")), {})
    dates = _dates(soup)
    links_of_head = [_attributes(tag) for tag in _tags(soup, ("link",))]
    refreshes = (tag for tag in _tags(soup, ("meta",)) if contract.is_refresh(_attributes(tag)))
    refresh = contract.refresh_in(_attributes(tag) for tag in refreshes if tag.find_parent("noscript") is None)
    root = next(map(_attributes, _tags(soup, ("html",))), {})
    ids = marks.section_ids(_NODES, _tags(soup, contract.HEADINGS), by_anchor)
    terms = marks.terms_of(_NODES, _tags(soup, (contract.DEFINED,)), by_anchor, link_texts=link_texts)
    _reduce_to_text(soup)
    title = next(map(_NODES.text, _tags(soup, ("title",))), "")
    text = _read_text(soup, ids, link_texts)
    return Extract(
        title=title or contract.shared_title(map(_attributes, _tags(soup, ("meta",)))) or text.first_heading,
        description=description,
        headings=tuple(mark.heading for mark in text.headings),
        body=text.body,
        blocks=text.blocks,
        terms=terms,
        lang=(root.get("lang") or root.get("xml:lang") or "").strip(),
        base=(base.get("href") or "").strip(),
        canonical=contract.canonical_in(links_of_head),
        alternates=contract.alternates_in(links_of_head),
        refresh=refresh,
        dates=dates,
        robots=robots,
        links=links,
        nofollow=nofollow,
    )


def _dates(soup: BeautifulSoup) -> tuple[str, ...]:
    scripts = [tag.get_text() for tag in _tags(soup, ("script",)) if contract.is_json_ld(_attributes(tag))]
    times = [_attributes(tag) for tag in _tags(soup, ("time",)) if tag.find_parent(contract.MAIN)]
    return contract.dates_in(map(_attributes, _tags(soup, ("meta",))), scripts, times)


def _tags(soup: BeautifulSoup, names: Iterable[str]) -> list[Tag]:
    return cast("list[Tag]", soup.find_all(list(names)))


def _attributes(tag: Tag) -> contract.Attributes:
    return cast("contract.Attributes", tag.attrs)


def _remove(soup: BeautifulSoup, names: Iterable[str]) -> None:
    _decompose(_tags(soup, names))


def _decompose(tags: Iterable[Tag]) -> None:
    for tag in tags:
        if not tag.decomposed:  # It may be inside of one that was removed before.
            tag.decompose()


def _anchor(tag: Tag) -> str:
    texts = [string for string in tag.find_all(string=True) if not isinstance(string, PreformattedString)]
    within_a_word = all(part.name in contract.INLINE for part in _NODES.within(tag))
    text = ("" if within_a_word else " ").join(texts)
    if text and not text.isspace():
        return text
    return " ".join(visible.text_of_image(_attributes(image)) for image in tag.find_all("img"))


def _is_kept(tag: Tag) -> bool:
    return tag.name in visible.NEVER_HIDDEN or tag.find(list(boilerplate.NEVER_BOILERPLATE)) is not None


def _reduce_to_text(soup: BeautifulSoup) -> None:
    """Remove what is never text, and separate texts at the edges of elements that cannot occur within a word."""
    _remove(soup, contract.NOT_TEXT)
    hidden = [tag for tag in soup.select(visible.MAY_BE_HIDDEN) if visible.is_hidden(_attributes(tag))]
    buttons = _tags(soup, (visible.BUTTON,))
    controls = [tag for tag in buttons if tag.find_parent(list(visible.KEEPS_BUTTONS)) is None]
    _decompose(tag for tag in (*hidden, *controls) if not _is_kept(tag))
    for string in soup.find_all(string=lambda string: isinstance(string, PreformattedString)):
        string.extract()
    for tag in soup.find_all(lambda tag: tag.name not in contract.INLINE):
        tag.insert(0, marks.EDGE)
        tag.append(marks.EDGE)
        if tag.parent is not None:
            tag.insert_before(marks.EDGE)
            tag.insert_after(marks.EDGE)


def _read_text(soup: BeautifulSoup, ids: Mapping[int, str], link_texts: Collection[str]) -> marks.Text:
    elements = marks.elements_of(_NODES, ((tag.name, tag) for tag in _tags(soup, marks.MARKED)))
    crumbs = next((each.node for each in elements if each.sign.is_breadcrumb), None)
    if crumbs is not None and crumbs.find(list(boilerplate.NEVER_BOILERPLATE)) is not None:
        crumbs = None
    breadcrumb = _NODES.text(crumbs) if crumbs is not None else ""
    for image in _tags(soup, ("img",)):
        image.insert(0, visible.text_of_image(_attributes(image)))
    marked = marks.marks_of(_NODES, elements, crumbs, ids)
    for number, (tag, _) in enumerate(marked):
        # Within the tag: to insert beside it, BeautifulSoup searches it among all children of its parent.
        tag.insert(0, marks.opening(number))
        tag.append(marks.CLOSING)
    body = soup.find("body")
    text = "".join(body.find_all(string=True)) if isinstance(body, Tag) else ""
    return marks.read(text, [mark for _, mark in marked], breadcrumb=breadcrumb, links=link_texts)
