"""Extraction with lexbor, an HTML parser in C: the default, for its speed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from selectolax.lexbor import LexborHTMLParser, LexborNode, SelectolaxError

from app.crawl.extract import contract
from app.crawl.extract.contract import Extract

_HEADINGS = ", ".join(contract.HEADINGS)
_BOILERPLATE = ", ".join(contract.BOILERPLATE)
_NEVER_BOILERPLATE = ", ".join(contract.NEVER_BOILERPLATE)
_TIMES = ", ".join(f"{name} time[datetime]" for name in contract.MAIN)

#: The list of `_elements` that an element is in, by its name.
_LISTS = {
    **dict.fromkeys(contract.INLINE, "inline"),
    **dict.fromkeys(contract.NOT_TEXT, "not text"),
    **dict.fromkeys(contract.LINKS, "links"),
    **{name: name for name in ("base", "link", "meta", "script", "time")},
}
#: The same by lexbor's number of the name, which is the same in every document.
_NEW = LexborHTMLParser("<p><!---->")
_LIST_BY_NUMBER = {_NEW.create_node(name).tag_id: found for name, found in _LISTS.items()}
_LIST_BY_NUMBER |= {node.tag_id: "comments" for node in _NEW.css("p")[0].iter()}
_LINK_NAMES = {_NEW.create_node(name).tag_id: name for name in contract.LINKS}
_INLINE_LINKS = frozenset(number for number, name in _LINK_NAMES.items() if name in contract.INLINE)


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
            return contract.extractor("beautifulsoup").extract(document)
        return _extract(tree, root, document)


def _extract(tree: LexborHTMLParser, root: LexborNode, document: str) -> Extract:
    # Links and metadata are read first: the steps below remove parts of the tree.
    elements = _elements(root)
    links = contract.links_to_follow((_LINK_NAMES[node.tag_id], node.attributes) for node in elements["links"])
    metas = [node.attributes for node in elements["meta"]]
    description, robots = contract.description_and_directives(metas)
    json_ld = (node.text() for node in elements["script"] if contract.is_json_ld(node.attributes))
    times = tree.css(_TIMES) if elements["time"] else []
    dates = contract.dates_in(metas, json_ld, (node.attributes for node in times))
    bases = (node.attributes for node in elements["base"])
    base = next((attributes for attributes in bases if "href" in attributes), {})
    canonical = contract.canonical_in(node.attributes for node in elements["link"])
    _reduce_to_text(tree, elements)
    title = tree.css_first("title")
    crumbs = tree.css_first(contract.BREADCRUMB)
    breadcrumb = _text(crumbs) if crumbs is not None and crumbs.css_first(_NEVER_BOILERPLATE) is None else ""
    _remove(tree.css(_BOILERPLATE))
    _remove_boilerplate_by_attribute(tree)
    headings = [(node.tag, contract.heading(_text(node))) for node in tree.css(_HEADINGS)]
    _remove(tree.css(contract.HEADER))
    return Extract(
        title=(_text(title) if title else "") or next((text for tag, text in headings if tag == "h1" and text), ""),
        description=description,
        headings=tuple(text for _, text in headings if text),
        body=contract.without_permalinks(_body(tree, breadcrumb, document)),
        lang=(root.attributes.get("lang") or "").strip(),
        base=(base.get("href") or "").strip(),
        canonical=canonical,
        dates=dates,
        robots=robots,
        links=links,
    )


def _elements(root: LexborNode) -> Mapping[str, list[LexborNode]]:
    """Return the elements in `_LISTS` and the comments, by the name of their list, in document order.

    This is one walk over the tree. A selector would be a walk, too, with a look-up of its names for each element.
    """
    found: dict[str, list[LexborNode]] = {name: [] for name in {*_LISTS.values(), "comments"}}
    by_number = {number: found[name] for number, name in _LIST_BY_NUMBER.items()}
    for node in root.traverse():
        elements = by_number.get(node.tag_id)
        if elements is not None:
            elements.append(node)
    return found


def _remove(nodes: Iterable[LexborNode]) -> None:
    for node in nodes:
        # Its content stays in it, so that elements within it can be removed from it, too.
        node.decompose(recursive=False)


def _reduce_to_text(tree: LexborHTMLParser, elements: Mapping[str, list[LexborNode]]) -> None:
    """Remove what is never text, and unwrap what may occur within a word: inline tags and comments."""
    for name in ("not text", "script", "comments"):
        _remove(elements[name])
    for name in ("inline", "time"):
        for node in elements[name]:
            node.unwrap(delete_empty=True)
    for node in elements["links"]:
        if node.tag_id in _INLINE_LINKS:
            node.unwrap(delete_empty=True)
    tree.merge_text_nodes()


def _remove_boilerplate_by_attribute(tree: LexborHTMLParser) -> None:
    boilerplate = tree.css(contract.BOILERPLATE_BY_ATTRIBUTE)
    if not boilerplate:
        return
    kept: set[int] = set()
    for node in tree.css(_NEVER_BOILERPLATE):
        parent = node.parent
        while parent is not None and parent.mem_id not in kept:
            kept.add(parent.mem_id)
            parent = parent.parent
    # The last one first: an element inside of a removed one no longer exists.
    for node in reversed(boilerplate):
        if node.mem_id not in kept:
            node.decompose()


def _body(tree: LexborHTMLParser, breadcrumb: str, document: str) -> str:
    text = _text(tree.body)
    if len(text) >= contract.MIN_TEXT:
        return f"{text} {breadcrumb}".rstrip()
    whole = LexborHTMLParser(document)
    if whole.root is not None:
        _reduce_to_text(whole, _elements(whole.root))
    return _text(whole.body)


def _text(node: LexborNode | None) -> str:
    return contract.collapsed(node.text(separator=" ")) if node is not None else ""
