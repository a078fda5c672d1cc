"""Extraction with lexbor, an HTML parser in C: the default, for its speed."""

from __future__ import annotations

from selectolax.lexbor import LexborHTMLParser, LexborNode, SelectolaxError

from app.crawl.extract import contract
from app.crawl.extract.contract import Extract

_LINKS = ", ".join(f"{name}[{attribute}]" for name, attribute in contract.LINKS.items())
_HEADINGS = ", ".join(contract.HEADINGS)
_TIMES = ", ".join(f"{name} time[datetime]" for name in contract.MAIN)
_NOT_TEXT = list(contract.NOT_TEXT)
_INLINE = list(contract.INLINE)
_BOILERPLATE = list(contract.BOILERPLATE)
_NEVER_BOILERPLATE = ", ".join(contract.NEVER_BOILERPLATE)


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
    # Links are read first: the steps below remove parts of the tree.
    links = contract.links_to_follow((node.tag or "", node.attributes) for node in tree.css(_LINKS))
    metas = [node.attributes for node in tree.css("meta")]
    description, robots = contract.description_and_directives(metas)
    json_ld = (
        node.text()
        for node in tree.css("script[type]")
        if (node.attributes.get("type") or "").strip().lower() == contract.JSON_LD
    )
    dates = contract.dates_in(metas, json_ld, (node.attributes for node in tree.css(_TIMES)))
    base = tree.css_first("base[href]")
    canonical = contract.canonical_in(node.attributes for node in tree.css("link[rel]"))
    _reduce_to_text(tree, root, document)
    title = tree.css_first("title")
    crumbs = tree.css_first(contract.BREADCRUMB)
    breadcrumb = _text(crumbs) if crumbs is not None and crumbs.css_first(_NEVER_BOILERPLATE) is None else ""
    tree.strip_tags(_BOILERPLATE)
    _strip_boilerplate_by_attribute(tree)
    headings = [(node.tag, contract.heading(_text(node))) for node in tree.css(_HEADINGS)]
    tree.strip_tags([contract.HEADER])
    return Extract(
        title=(_text(title) if title else "") or next((text for tag, text in headings if tag == "h1" and text), ""),
        description=description,
        headings=tuple(text for _, text in headings if text),
        body=contract.without_permalinks(_body(tree, breadcrumb, document)),
        lang=(root.attributes.get("lang") or "").strip(),
        base=(base.attributes.get("href") or "").strip() if base else "",
        canonical=canonical,
        dates=dates,
        robots=robots,
        links=links,
    )


def _reduce_to_text(tree: LexborHTMLParser, root: LexborNode, document: str) -> None:
    """Remove what is never text, and unwrap what may occur within a word: inline tags and comments."""
    tree.strip_tags(_NOT_TEXT)
    if "<!--" in document:
        for comment in [node for node in root.traverse() if node.is_comment_node]:
            comment.decompose()
    tree.unwrap_tags(_INLINE, delete_empty=True)
    tree.merge_text_nodes()


def _strip_boilerplate_by_attribute(tree: LexborHTMLParser) -> None:
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
        _reduce_to_text(whole, whole.root, document)
    return _text(whole.body)


def _text(node: LexborNode | None) -> str:
    return contract.collapsed(node.text(separator=" ")) if node is not None else ""
