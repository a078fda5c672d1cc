"""Extraction with BeautifulSoup: slower than lexbor, used for documents that lexbor rejects and to compare with it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import cast

from bs4 import BeautifulSoup, MarkupResemblesLocatorWarning, Tag, XMLParsedAsHTMLWarning
from bs4.element import PreformattedString

from app.crawl.extract import contract
from app.crawl.extract.contract import Extract


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
        return _extract(soup)


def _extract(soup: BeautifulSoup) -> Extract:
    _remove(soup, ("template", "noframes"))  # Browsers do not show their content.
    links = contract.links_to_follow((tag.name, _attributes(tag)) for tag in _tags(soup, contract.LINKS))
    description, robots = contract.description_and_directives(map(_attributes, _tags(soup, ("meta",))))
    base = next((_attributes(tag) for tag in _tags(soup, ("base",)) if tag.has_attr("href")), {})
    dates = _dates(soup)
    canonical = contract.canonical_in(map(_attributes, _tags(soup, ("link",))))
    root = next(map(_attributes, _tags(soup, ("html",))), {})
    _reduce_to_text(soup)
    title = _first_text(soup, "title")
    whole = _first_text(soup, "body")
    crumbs = soup.select_one(contract.BREADCRUMB)
    breadcrumb = _text(crumbs) if crumbs and crumbs.find(list(contract.NEVER_BOILERPLATE)) is None else ""
    _remove(soup, contract.BOILERPLATE)
    _remove_boilerplate_by_attribute(soup)
    headings = [(tag.name, contract.heading(_text(tag))) for tag in _tags(soup, contract.HEADINGS)]
    _remove(soup, (contract.HEADER,))
    body = _first_text(soup, "body")
    return Extract(
        title=title or next((text for name, text in headings if name == "h1" and text), ""),
        description=description,
        headings=tuple(text for _, text in headings if text),
        body=contract.without_permalinks(f"{body} {breadcrumb}".rstrip() if len(body) >= contract.MIN_TEXT else whole),
        lang=(root.get("lang") or "").strip(),
        base=(base.get("href") or "").strip(),
        canonical=canonical,
        dates=dates,
        robots=robots,
        links=links,
    )


def _dates(soup: BeautifulSoup) -> tuple[str, ...]:
    scripts = [tag.get_text() for tag in _tags(soup, ("script",)) if contract.is_json_ld(_attributes(tag))]
    times = [
        _attributes(tag)
        for tag in _tags(soup, ("time",))
        if tag.has_attr("datetime") and tag.find_parent(contract.MAIN)
    ]
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


def _remove_boilerplate_by_attribute(soup: BeautifulSoup) -> None:
    kept: set[int] = set()
    for tag in _tags(soup, contract.NEVER_BOILERPLATE):
        parent = tag.parent
        while parent is not None and id(parent) not in kept:
            kept.add(id(parent))
            parent = parent.parent
    _decompose(tag for tag in soup.select(contract.BOILERPLATE_BY_ATTRIBUTE) if id(tag) not in kept)


def _reduce_to_text(soup: BeautifulSoup) -> None:
    """Remove what is never text, and put a space at the edges of elements that cannot occur within a word."""
    _remove(soup, contract.NOT_TEXT)
    for string in soup.find_all(string=lambda string: isinstance(string, PreformattedString)):
        string.extract()
    for tag in soup.find_all(lambda tag: tag.name not in contract.INLINE):
        tag.insert(0, " ")
        tag.append(" ")
        if tag.parent is not None:
            tag.insert_before(" ")
            tag.insert_after(" ")


def _first_text(soup: BeautifulSoup, name: str) -> str:
    return next(map(_text, _tags(soup, (name,))), "")


def _text(tag: Tag) -> str:
    # Every string, also those of elements that BeautifulSoup would not count as text, such as <ruby>'s.
    return contract.collapsed("".join(tag.find_all(string=True)))
