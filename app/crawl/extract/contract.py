"""The contract of an extractor: HTML in, an Extract out; and the rules that every extractor holds to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from app.crawl.values import Extract

#: `<meta name="...">` of our own, beside `robots`.
OWN_NAME = "perennial"

#: Never text: removed with all they hold before anything is read but links.
NOT_TEXT = ("script", "style", "noscript", "template", "svg", "noframes")
#: Repeated on every page of a site; a page's own text is what stands outside. `header` may hold the page's headings.
CHROME = ("nav", "footer", "aside")
HEADER = "header"
#: With fewer characters than this outside of the chrome, the page is its chrome: the whole body is its text.
NEARLY_NOTHING = 50

#: These may stand within a word; at the edge of every other element a word ends.
INLINE = (
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i", "ins",
    "kbd", "label", "mark", "q", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u",
    "var", "wbr",
)  # fmt: skip

HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")

#: Elements that lead to other pages, and the attribute that says where.
LINKS = {"a": "href", "area": "href", "frame": "src", "iframe": "src"}

Attributes = Mapping[str, str | None]


class Extractor(Protocol):
    """Finds in an HTML document what is indexed and what is followed."""

    def extract(self, document: str) -> Extract:
        """Return what the document holds; never raises for bad markup."""


def collapsed(text: str) -> str:
    """Return the text with every run of white space as one space, and none at its ends."""
    return " ".join(text.split())


def followed(elements: Iterable[tuple[str, Attributes]]) -> tuple[str, ...]:
    """Return the links of elements, given by name and attributes; those with rel=nofollow are left out."""
    found = []
    for name, attributes in elements:
        rel = attributes.get("rel")
        if rel and "nofollow" in rel.lower().split():
            continue
        found.append(attributes.get(LINKS[name]) or "")
    return tuple(found)


def described(metas: Iterable[Attributes]) -> tuple[str, frozenset[str]]:
    """Return the description, and the directives for robots at large and for us, of `<meta>` elements."""
    description = ""
    directives: set[str] = set()
    for attributes in metas:
        name = (attributes.get("name") or "").strip().lower()
        content = attributes.get("content") or ""
        if name == "description":
            description = description or collapsed(content)
        elif name in ("robots", OWN_NAME):
            directives.update(part.strip().lower() for part in content.split(","))
    return description, frozenset(directives - {""})


def canonical_in(links: Iterable[Attributes]) -> str:
    """Return the href of the first `<link rel=canonical>`, or an empty string."""
    for attributes in links:
        if "canonical" in (attributes.get("rel") or "").lower().split() and attributes.get("href"):
            return (attributes["href"] or "").strip()
    return ""
