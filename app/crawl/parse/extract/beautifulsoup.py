"""Extraction with BeautifulSoup: slower than lexbor, used for documents that lexbor rejects and to compare with it."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import cast

from bs4 import BeautifulSoup, MarkupResemblesLocatorWarning, Tag, XMLParsedAsHTMLWarning
from bs4.element import PreformattedString

from app.crawl.parse.extract import boilerplate, contract, extraction, marks, visible
from app.crawl.parse.extract.contract import Extract


class BeautifulSoupExtractor:
    """Extracts with BeautifulSoup on top of the parser named `features`."""

    def __init__(self, features: str = "lxml", *, robot: str = contract.OWN_NAME) -> None:
        self.robot = robot
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
        return extraction.extract(_SoupTree(soup), self)


class _SoupTree:
    """The tree of BeautifulSoup."""

    def __init__(self, soup: BeautifulSoup) -> None:
        self._soup = soup
        self.without_frames = next((tag.get_text() for tag in self._tags(("noframes",))), "")
        _decompose(self._tags(("template", "noframes")))  # Browsers do not show their content.

    def key(self, node: Tag) -> int:
        return id(node)

    def name(self, node: Tag) -> str:
        return node.name

    def attributes(self, node: Tag) -> contract.Attributes:
        return cast("contract.Attributes", node.attrs)

    def id(self, node: Tag) -> str:
        attributes = self.attributes(node)
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
        return contract.collapsed(self.written(node).replace("\0", " "))

    def root_attributes(self) -> contract.Attributes:
        return next(map(self.attributes, self._tags(("html",))), {})

    def read_first(self) -> Mapping[str, list[Tag]]:
        found: dict[str, list[Tag]] = {name: [] for name in extraction.READ_FIRST.values()}
        for tag in self._tags(extraction.READ_FIRST):
            found[extraction.READ_FIRST[tag.name]].append(tag)
        return found

    def anchor(self, node: Tag) -> str:
        texts = [string for string in node.find_all(string=True) if not isinstance(string, PreformattedString)]
        within_a_word = all(part.name in contract.INLINE for part in self.within(node))
        text = ("" if within_a_word else " ").join(texts)
        if text and not text.isspace():
            return text
        return " ".join(visible.text_of_image(self.attributes(image)) for image in node.find_all("img"))

    def contains(self, node: Tag, names: Collection[str]) -> bool:
        return node.find(list(names)) is not None

    def reduce_to_text(self) -> None:
        _decompose(self._tags(contract.NOT_TEXT))
        hidden = [tag for tag in self._soup.select(visible.MAY_BE_HIDDEN) if visible.is_hidden(self.attributes(tag))]
        buttons = self._tags((visible.BUTTON,))
        controls = [tag for tag in buttons if tag.find_parent(list(visible.KEEPS_BUTTONS)) is None]
        _decompose(
            tag
            for tag in (*hidden, *controls)
            if tag.name not in visible.NEVER_HIDDEN and not self.contains(tag, boilerplate.NEVER_BOILERPLATE)
        )
        for string in self._soup.find_all(string=lambda string: isinstance(string, PreformattedString)):
            string.extract()
        for tag in self._soup.find_all(lambda tag: tag.name not in contract.INLINE):
            tag.insert(0, marks.EDGE)
            tag.append(marks.EDGE)
            if tag.parent is not None:
                tag.insert_before(marks.EDGE)
                tag.insert_after(marks.EDGE)

    def read_with_text(self) -> Iterable[tuple[str, Tag]]:
        return ((tag.name, tag) for tag in self._tags(extraction.READ_WITH_TEXT))

    def show_instead(self, image: Tag, text: str) -> None:
        image.insert(0, text)

    def enclose(self, node: Tag, opening: str, closing: str) -> None:
        # Within the tag: to insert beside it, BeautifulSoup searches it among all children of its parent.
        node.insert(0, opening)
        node.append(closing)

    def body(self) -> str:
        body = self._soup.find("body")
        return self.written(body) if isinstance(body, Tag) else ""

    def _tags(self, names: Iterable[str]) -> list[Tag]:
        return cast("list[Tag]", self._soup.find_all(list(names)))


def _decompose(tags: Iterable[Tag]) -> None:
    for tag in tags:
        if not tag.decomposed:  # It may be inside of one that was removed before.
            tag.decompose()
