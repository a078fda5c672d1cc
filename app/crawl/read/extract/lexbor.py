"""Extraction with lexbor, an HTML parser in C: the default, for its speed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

from selectolax.lexbor import LexborHTMLParser, LexborNode, SelectolaxError

from app.crawl.read.extract import boilerplate, contract, marks, visible
from app.crawl.read.extract.contract import Extract

_NEVER_BOILERPLATE = ", ".join(boilerplate.NEVER_BOILERPLATE)

# A selector costs a walk over the whole tree, with a look-up of each of its names at each element. So one walk finds
# all elements, by lexbor's numbers of their names, which are the same in every document.
_NEW = LexborHTMLParser("<p><!---->")


def _by_number(names: Iterable[str]) -> dict[int, str]:
    return {_NEW.create_node(name).tag_id: name for name in names}


_LINKS = _by_number(contract.LINKS)
_INLINE = frozenset(_by_number(contract.INLINE))
_IMAGE = "img"
_NAMES = _by_number((*marks.MARKED, contract.ITEM, contract.DEFINED, contract.ANCHORED, "a"))
#: Elements that are read with the text.
_READ = _by_number((*marks.MARKED, _IMAGE))
#: Elements that are read or removed before the text is read: the list of `_elements` that each is in.
_FIRST = {
    **dict.fromkeys(_INLINE, "inline"),
    **dict.fromkeys(_by_number(contract.NOT_TEXT), "not text"),
    **dict.fromkeys(_by_number((visible.BUTTON,)), "buttons"),
    **dict.fromkeys(_by_number(contract.HEADINGS), "headings"),
    **dict.fromkeys(_LINKS, "links"),
    **_by_number(("base", contract.DEFINED, "link", "meta", "noframes", "script", "time")),
    **{comment.tag_id: "comments" for comment in _NEW.css("p")[0].iter()},
}


class LexborExtractor:
    """Extracts with lexbor, and with BeautifulSoup what lexbor rejects."""

    def extract(self, document: str) -> Extract:
        """Return the content of the document."""
        try:
            tree = LexborHTMLParser(document)
            root = tree.root
        except (SelectolaxError, ValueError, RuntimeError):  # ValueError for a lone surrogate.
            root = None
        if root is None:
            # Imported on demand: lexbor rejects few documents, and the other parser costs time and memory.
            from app.crawl.read.extract.beautifulsoup import BeautifulSoupExtractor

            return BeautifulSoupExtractor().extract(document)
        found, without_frames = _extract(tree, root)
        return visible.with_text_instead_of_frames(found, without_frames, self)


class _LexborNodes:
    """Reads lexbor's nodes."""

    def key(self, node: LexborNode) -> int:
        return node.mem_id

    def name(self, node: LexborNode) -> str:
        return _NAMES.get(node.tag_id, "")

    def attributes(self, node: LexborNode) -> contract.Attributes:
        return node.attributes

    def id(self, node: LexborNode) -> str:
        return node.id or (_LINKS.get(node.tag_id) == "a" and node.attributes.get("name")) or ""

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


_NODES = _LexborNodes()


def _extract(tree: LexborHTMLParser, root: LexborNode) -> tuple[Extract, str]:
    """Return the content, and the document that a page of frames has for browsers without them."""
    first = _elements(root)
    # Links and metadata are read first: the steps below remove parts of the tree.
    linking = [(_LINKS[node.tag_id], node.attributes, node) for node in first["links"]]
    links, nofollow = contract.links_to_follow(linking, _anchor)
    link_texts = contract.texts_of(links)
    by_anchor = marks.anchored(_NODES, ((attributes, node) for name, attributes, node in linking if name == "a"))
    metas = [node.attributes for node in first["meta"]]
    description, robots = contract.description_and_directives(metas)
    json_ld = (node.text() for node in first["script"] if contract.is_json_ld(node.attributes))
    times = (node.attributes for node in first["time"] if _is_within(node, contract.MAIN))
    dates = contract.dates_in(metas, json_ld, times)
    bases = (node.attributes for node in first["base"])
    base = next((attributes for attributes in bases if "href" in attributes), {})
    links_of_head = [node.attributes for node in first["link"]]
    refreshes = (node for node in first["meta"] if contract.is_refresh(node.attributes))
    refresh = contract.refresh_in(node.attributes for node in refreshes if not _is_within(node, ("noscript",)))
    ids = marks.section_ids(_NODES, first["headings"], by_anchor)
    terms = marks.terms_of(_NODES, first[contract.DEFINED], by_anchor, link_texts=link_texts)
    without_frames = next((node.text() for node in first["noframes"]), "")
    _reduce_to_text(tree, first)
    title = tree.css_first("title")
    text = _read_text(tree, root, ids, link_texts)
    found = Extract(
        title=(_NODES.text(title) if title else "") or contract.shared_title(metas) or text.first_heading,
        description=description,
        headings=tuple(mark.heading for mark in text.headings),
        body=text.body,
        blocks=text.blocks,
        terms=terms,
        lang=(root.attributes.get("lang") or root.attributes.get("xml:lang") or "").strip(),
        base=(base.get("href") or "").strip(),
        canonical=contract.canonical_in(links_of_head),
        alternates=contract.alternates_in(links_of_head),
        refresh=refresh,
        dates=dates,
        robots=robots,
        links=links,
        nofollow=nofollow,
    )
    return found, without_frames


def _elements(root: LexborNode) -> Mapping[str, list[LexborNode]]:
    """Return the elements of `_FIRST` by the name of their list, in document order."""
    found: dict[str, list[LexborNode]] = {name: [] for name in _FIRST.values()}
    by_number = {number: found[name] for number, name in _FIRST.items()}
    for node in root.traverse():
        elements = by_number.get(node.tag_id)
        if elements is not None:
            elements.append(node)
    return found


def _is_within(node: LexborNode, names: Collection[str]) -> bool:
    parent = node.parent
    while parent is not None and parent.tag not in names:
        parent = parent.parent
    return parent is not None


def _is_kept(node: LexborNode) -> bool:
    return node.tag in visible.NEVER_HIDDEN or node.css_first(_NEVER_BOILERPLATE) is not None


def _anchor(node: LexborNode) -> str:
    text = node.text(separator="\0")
    if not text or text.isspace():
        return " ".join(visible.text_of_image(image.attributes) for image in node.css("img"))
    if "\0" not in text:
        return text
    within_a_word = all(part.tag_id in _INLINE for part in _NODES.within(node))
    return text.replace("\0", "" if within_a_word else " ")


def _reduce_to_text(tree: LexborHTMLParser, first: Mapping[str, list[LexborNode]]) -> None:
    """Remove what is never shown as text, and unwrap what may occur within a word: inline tags and comments."""
    hidden = [node for node in tree.css(visible.MAY_BE_HIDDEN) if visible.is_hidden(node.attributes)]
    controls = [node for node in first["buttons"] if not _is_within(node, visible.KEEPS_BUTTONS)]
    removed = {node.mem_id: node for node in (*hidden, *controls) if not _is_kept(node)}
    removed |= {node.mem_id: node for name in ("not text", "noframes", "script", "comments") for node in first[name]}
    for node in removed.values():
        # Its content stays in it, so that elements within it can be removed from it, too.
        node.decompose(recursive=False)
    for name in ("inline", "links", "time"):
        for node in first[name]:
            if node.tag_id in _INLINE and not (hidden and node.mem_id in removed):
                node.unwrap(delete_empty=True)
    tree.merge_text_nodes()


def _read_text(
    tree: LexborHTMLParser, root: LexborNode, ids: Mapping[int, str], link_texts: Collection[str]
) -> marks.Text:
    # Only what is still in the tree: the parent of another image may be removed.
    left = [(name, node) for node in root.traverse() if (name := _READ.get(node.tag_id))]
    elements = marks.elements_of(_NODES, ((name, node) for name, node in left if name != _IMAGE))
    crumbs = next((each.node for each in elements if each.sign.is_breadcrumb), None)
    if crumbs is not None and crumbs.css_first(_NEVER_BOILERPLATE) is not None:
        crumbs = None
    breadcrumb = _NODES.text(crumbs) if crumbs is not None else ""
    for image in (node for name, node in left if name == _IMAGE):
        if instead := visible.text_of_image(image.attributes):
            image.insert_before(instead)
    marked = marks.marks_of(_NODES, elements, crumbs, ids)
    for number, (node, _) in enumerate(marked):
        node.insert_before(marks.opening(number))
        node.insert_after(marks.CLOSING)
    text = tree.body.text(separator=marks.EDGE, skip_empty=True) if tree.body is not None else ""
    return marks.read(text, [mark for _, mark in marked], breadcrumb=breadcrumb, links=link_texts)
