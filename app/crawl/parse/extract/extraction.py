"""What is indexed of a parsed document, and which links are followed: the same steps for the tree of each parser."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Protocol, TypeVar

from app.crawl.parse.extract import boilerplate, contract, marks, visible
from app.crawl.parse.extract.contract import Extract, Extractor

Node = TypeVar("Node")

#: The elements that are read before the tree is reduced to its text, each with the name of its list.
READ_FIRST: Final = {
    **dict.fromkeys(contract.HEADINGS, "headings"),
    **dict.fromkeys(contract.LINKS, "links"),
    **{name: name for name in ("base", contract.DEFINED, "link", "meta", "script", "time")},
}
_IMAGE: Final = "img"
#: The elements that are read with the text.
READ_WITH_TEXT: Final = frozenset({*marks.MARKED, _IMAGE, "title"})
#: The other elements whose names `Tree.name` must return.
NAMES: Final = frozenset({contract.ITEM, contract.DEFINED, contract.ANCHORED, "a", "noscript", *visible.KEEPS_BUTTONS})


class Tree(marks.Nodes[Node], Protocol[Node]):
    """The tree of one document, which is changed as it is read."""

    @property
    def without_frames(self) -> str:
        """The document that a page of frames has for browsers without them, or an empty string."""

    def root_attributes(self) -> contract.Attributes:
        """Return the attributes of `<html>`."""

    def read_first(self) -> Mapping[str, list[Node]]:
        """Return the elements of `READ_FIRST` by the name of their list, in document order."""

    def anchor(self, node: Node) -> str:
        """Return the text of a link, or else that of its images."""

    def contains(self, node: Node, names: Collection[str]) -> bool:
        """Return whether an element with one of these names is in an element."""

    def reduce_to_text(self) -> None:
        """Remove what is never shown as text. From then on, texts within a word are not separated."""

    def read_with_text(self) -> Iterable[tuple[str, Node]]:
        """Return the names and elements of `READ_WITH_TEXT` that are left in the tree, in document order."""

    def show_instead(self, image: Node, text: str) -> None:
        """Insert the text that stands for an image."""

    def enclose(self, node: Node, opening: str, closing: str) -> None:
        """Insert texts at the edges of an element."""

    def body(self) -> str:
        """Return the text of `<body>`, with `marks.EDGE` where the edge of an element separates texts."""


def extract(tree: Tree[Node], extractor: Extractor) -> Extract:
    """Return the content of a document; `extractor` reads what it has for browsers without frames."""
    first, root = tree.read_first(), tree.root_attributes()
    # Links and metadata are read first: the steps below remove parts of the tree.
    bases, metas, head_links = (list(map(tree.attributes, first[name])) for name in ("base", "meta", "link"))
    linking = [(tree.name(node), tree.attributes(node), node) for node in first["links"]]
    links, nofollow = contract.links_to_follow(linking, tree.anchor)
    link_texts = contract.texts_of(links)
    by_anchor = marks.anchored(tree, ((each, node) for name, each, node in linking if name == "a"))
    description, robots = contract.description_and_directives(metas, extractor.robot)
    base = next((each for each in bases if "href" in each), {})
    refreshes = (
        meta
        for meta, node in zip(metas, first["meta"], strict=True)
        if contract.is_refresh(meta) and not marks.is_within(tree, node, ("noscript",))
    )
    ids = marks.section_ids(tree, first["headings"], by_anchor)
    terms = marks.terms_of(tree, first[contract.DEFINED], by_anchor, link_texts=link_texts)
    refresh = contract.refresh_in(refreshes)
    scripts = [tree.written(node) for node in first["script"] if contract.is_json_ld(tree.attributes(node))]
    times = [tree.attributes(node) for node in first["time"] if marks.is_within(tree, node, contract.MAIN)]
    dates = contract.dates_in(metas, scripts, times)
    tree.reduce_to_text()
    title, text = _read_text(tree, ids, link_texts)
    found = Extract(
        title=title or contract.shared_title(metas) or text.first_heading,
        description=description,
        headings=tuple(mark.heading for mark in text.headings),
        body=text.body,
        blocks=text.blocks,
        terms=terms,
        lang=(root.get("lang") or root.get("xml:lang") or "").strip(),
        base=(base.get("href") or "").strip(),
        canonical=contract.canonical_in(head_links),
        alternates=contract.alternates_in(head_links),
        refresh=refresh,
        dates=dates,
        robots=robots,
        links=links,
        nofollow=nofollow,
    )
    return visible.with_text_instead_of_frames(found, tree.without_frames, extractor)


def _read_text(tree: Tree[Node], ids: Mapping[int, str], link_texts: Collection[str]) -> tuple[str, marks.Text]:
    """Return the title and the text of a document. `ids` are those of its sections."""
    left = list(tree.read_with_text())
    title = next((tree.text(node) for name, node in left if name == "title"), "")
    elements = marks.elements_of(tree, ((name, node) for name, node in left if name in marks.MARKED))
    crumbs = next((each.node for each in elements if each.sign.is_breadcrumb), None)
    if crumbs is not None and tree.contains(crumbs, boilerplate.NEVER_BOILERPLATE):
        crumbs = None
    breadcrumb = tree.text(crumbs) if crumbs is not None else ""
    for name, node in left:
        if name == _IMAGE and (instead := visible.text_of_image(tree.attributes(node))):
            tree.show_instead(node, instead)
    marked = marks.marks_of(tree, elements, crumbs, ids)
    for number, (node, _) in enumerate(marked):
        tree.enclose(node, marks.opening(number), marks.CLOSING)
    return title, marks.read(tree.body(), [mark for _, mark in marked], breadcrumb=breadcrumb, links=link_texts)
