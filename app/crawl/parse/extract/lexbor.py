"""Extraction with lexbor, an HTML parser in C: the default, for its speed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, islice

from selectolax.lexbor import LexborHTMLParser, LexborNode, SelectolaxError

from app.crawl.parse.extract import boilerplate, contract, extraction, marks, visible
from app.crawl.parse.extract.contract import Extract

# A selector costs a walk over the whole tree, with a look-up of each of its names at each element. So one walk finds
# all elements, by lexbor's numbers of their names, which are the same in every document.
_NEW = LexborHTMLParser("<p><!---->")


def _by_number(names: Iterable[str]) -> dict[int, str]:
    return {_NEW.create_node(name).tag_id: name for name in names}


_INLINE = frozenset(_by_number(contract.INLINE))
_NAMES = _by_number((*marks.MARKED, *contract.LINKS, *extraction.NAMES))
_READ_WITH_TEXT = _by_number(extraction.READ_WITH_TEXT)
#: Elements that are read or removed before the text is read: the list of `read_first` that each is in.
_FIRST = {
    **dict.fromkeys(_INLINE, "inline"),
    **dict.fromkeys(_by_number(contract.NOT_TEXT), "not text"),
    **dict.fromkeys(_by_number((visible.BUTTON,)), "buttons"),
    **{number: extraction.READ_FIRST[name] for number, name in _by_number(extraction.READ_FIRST).items()},
    **_by_number(("noframes",)),
    **{comment.tag_id: "comments" for comment in _NEW.css("p")[0].iter()},
}


class LexborExtractor:
    """Extracts with lexbor, and with BeautifulSoup what lexbor rejects."""

    def __init__(self, robot: str = contract.OWN_NAME) -> None:
        self.robot = robot

    def extract(self, document: str) -> Extract:
        """Return the content of the document."""
        try:
            tree = LexborHTMLParser(document)
            root = tree.root
        except (SelectolaxError, ValueError, RuntimeError):  # ValueError for a lone surrogate.
            root = None
        if root is None:
            # Imported on demand: lexbor rejects few documents, and the other parser costs time and memory.
            from app.crawl.parse.extract.beautifulsoup import BeautifulSoupExtractor

            return BeautifulSoupExtractor(robot=self.robot).extract(document)
        return extraction.extract(_LexborTree(tree, root), self)


class _LexborTree:
    """The tree of lexbor."""

    def __init__(self, tree: LexborHTMLParser, root: LexborNode) -> None:
        self._tree = tree
        self._root = root
        self._first: dict[str, list[LexborNode]] = {name: [] for name in _FIRST.values()}
        by_number = {number: self._first[name] for number, name in _FIRST.items()}
        for node in root.traverse():
            elements = by_number.get(node.tag_id)
            if elements is not None:
                elements.append(node)
        self.without_frames = next((node.text() for node in self._first["noframes"]), "")

    def key(self, node: LexborNode) -> int:
        return node.mem_id

    def name(self, node: LexborNode) -> str:
        return _NAMES.get(node.tag_id, "")

    def attributes(self, node: LexborNode) -> contract.Attributes:
        return node.attributes

    def id(self, node: LexborNode) -> str:
        return node.id or (self.name(node) == "a" and node.attributes.get("name")) or ""

    def parent(self, node: LexborNode) -> LexborNode | None:
        parent = node.parent
        return parent if parent is not None and parent.is_element_node else None

    def after(self, node: LexborNode) -> Iterator[LexborNode]:
        at: LexborNode | None = node
        is_first = True
        while at is not None:
            following = None if is_first else at.child
            is_first = False
            while following is None and at is not None:
                following = at.next
                at = at.parent if following is None else at
            at = following
            if at is None or (at.is_text_node and not (at.text_content or "").isspace()):
                return
            if at.is_element_node:
                yield at

    def within(self, node: LexborNode) -> Iterator[LexborNode]:
        elements = (each for each in node.traverse() if each.is_element_node)
        return islice(elements, 1, None)  # Without the node itself.

    def written(self, node: LexborNode) -> str:
        return str(node.text())

    def text(self, node: LexborNode) -> str:
        return contract.collapsed(node.text(separator=" "))

    def root_attributes(self) -> contract.Attributes:
        return self._root.attributes

    def read_first(self) -> Mapping[str, list[LexborNode]]:
        return self._first

    def anchor(self, node: LexborNode) -> str:
        text = node.text(separator="\0")
        if not text or text.isspace():
            return " ".join(visible.text_of_image(image.attributes) for image in node.css("img"))
        if "\0" not in text:
            return text
        within_a_word = all(part.tag_id in _INLINE for part in self.within(node))
        return text.replace("\0", "" if within_a_word else " ")

    def contains(self, node: LexborNode, names: Collection[str]) -> bool:
        return node.css_first(", ".join(names)) is not None

    def reduce_to_text(self) -> None:
        # What may occur within a word, inline tags and comments, is unwrapped.
        first = self._first
        hidden = [node for node in self._tree.css(visible.MAY_BE_HIDDEN) if visible.is_hidden(node.attributes)]
        buttons = first["buttons"]
        controls = [node for node in buttons if not marks.is_within(self, node, visible.KEEPS_BUTTONS)]
        removed = {
            node.mem_id: node
            for node in (*hidden, *controls)
            if node.tag not in visible.NEVER_HIDDEN and not self.contains(node, boilerplate.NEVER_BOILERPLATE)
        }
        never_text = ("not text", "noframes", "script", "comments")
        removed |= {node.mem_id: node for name in never_text for node in first[name]}
        for node in removed.values():
            # Its content stays in it, so that elements within it can be removed from it, too.
            node.decompose(recursive=False)
        links = (node for node in first["links"] if node.tag_id in _INLINE)
        within_words: Iterable[LexborNode] = chain(first["inline"], links, first["time"])
        if hidden:
            within_words = (node for node in within_words if node.mem_id not in removed)
        for node in within_words:
            node.unwrap(delete_empty=True)
        self._tree.merge_text_nodes()

    def read_with_text(self) -> Iterable[tuple[str, LexborNode]]:
        return ((name, node) for node in self._root.traverse() if (name := _READ_WITH_TEXT.get(node.tag_id)))

    def show_instead(self, image: LexborNode, text: str) -> None:
        image.insert_before(text)

    def enclose(self, node: LexborNode, opening: str, closing: str) -> None:
        node.insert_before(opening)
        node.insert_after(closing)

    def body(self) -> str:
        body = self._tree.body
        return body.text(separator=marks.EDGE, skip_empty=True) if body is not None else ""
