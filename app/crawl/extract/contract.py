"""The contract of an extractor: HTML in, an Extract out; and the rules that every extractor holds to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from app.crawl.values import Extract

#: `<meta name="...">` of our own, beside `robots`.
OWN_NAME = "perennial"

#: Never text: removed with all they hold before anything is read but links.
NOT_TEXT = ("script", "style", "noscript", "template", "svg", "noframes")
#: Repeated on every page of a site; a page's own text is what stands outside. `header` may hold the page's headings.
CHROME = ("nav", "footer", "aside")
HEADER = "header"
#: The same where no element says so but the role of a landmark (https://www.w3.org/TR/wai-aria-1.2/#landmark_roles) or
#: a class that generators of documentation give; but never what holds the page's own text or heading.
_MARKS = (
    '[role="navigation"]', '[role="search"]', '[role="complementary"]', '[role="contentinfo"]',
    ".bottomNav", ".breadcrumb", ".breadcrumbs", ".footer", ".nav-panel", ".navbar", ".navfooter", ".navheader",
    ".navpath", ".pagination", ".sphinxsidebar", ".subNav", ".topNav",
)  # fmt: skip
CHROME_BY_ATTRIBUTE = f":is(div, form, ol, p, section, table, ul):is({', '.join(_MARKS)})"
#: Where a page says what it is a part of: its words are kept, after the page's own.
TRAIL = ":is(div, nav, ol, p, table, ul):is(.breadcrumb, .breadcrumbs, .navheader, .navpath)"
NEVER_IN_CHROME = ("main", "article", "h1")
#: With fewer characters than this outside of the chrome, the page is its chrome: the whole body is its text.
NEARLY_NOTHING = 50

#: These may stand within a word; at the edge of every other element a word ends.
INLINE = (
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i", "ins",
    "kbd", "label", "mark", "q", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u",
    "var", "wbr",
)  # fmt: skip

#: What a date of the page is called in `<meta>` and in JSON-LD, lower case: of its last change, then of its appearance.
DATES = (
    "article:modified_time", "datemodified", "dcterms.modified", "dc.date.modified", "last-modified",
    "article:published_time", "datepublished", "dcterms.date", "dc.date", "date", "dcterms.created", "dc.date.issued",
)  # fmt: skip
#: Where a date may stand as `<time>`: elsewhere it is that of something else.
MAIN = ("main", "article")
JSON_LD = "application/ld+json"
#: Characters of a date that are looked at, and things of a JSON-LD script.
_LONGEST_DATE = 40
_THINGS = 50

#: Documentation generators end each heading so: it is where the link to it is.
_SIGN_IN_TEXT = re.compile("(?<=\\S)[¶🔗\uf0c1](?=\\s|$)")
_PERMALINK = re.compile("\\s*[¶§🔗\uf0c1]$|\\s+#$")

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


def heading(text: str) -> str:
    """Return a heading's text without the sign at its end that is but a link to the heading itself."""
    return _PERMALINK.sub("", text)


def without_permalinks(text: str) -> str:
    """Return a page's text without the signs at the ends of headings and definitions that are but links to them."""
    return _SIGN_IN_TEXT.sub("", text)


def dates_in(metas: Iterable[Attributes], scripts: Iterable[str], times: Iterable[Attributes]) -> tuple[str, ...]:
    """Return the dates that a document gives itself, those of its last change before those of its publication.

    `metas` are its `<meta>` elements, `scripts` the texts of its `<script type="application/ld+json">`
    (https://schema.org/dateModified), `times` its `<time>` elements within the main text: the first one counts.
    """
    named = [*_named_dates(metas), *(pair for script in scripts for pair in _linked_dates(script))]
    ranked = sorted((DATES.index(name), text) for name, text in _first_of_each(named).items())
    shown = (attributes.get("datetime") or "" for attributes in times)
    return tuple(text for text in (*(text for _, text in ranked), next(shown, "")) if text)


def _first_of_each(named: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, text in named:
        if text.strip():
            found.setdefault(name, text.strip()[:_LONGEST_DATE])
    return found


def _named_dates(metas: Iterable[Attributes]) -> Iterator[tuple[str, str]]:
    for attributes in metas:
        for kind in ("property", "name", "itemprop", "http-equiv"):
            name = (attributes.get(kind) or "").strip().lower()
            if name in DATES:
                yield name, attributes.get("content") or ""


def _linked_dates(script: str) -> Iterator[tuple[str, str]]:
    """Yield the dates of what a JSON-LD script describes, and of its main thing; not of what is part of it."""
    if "date" not in script:
        return
    try:
        described = json.loads(script)
    except (ValueError, RecursionError):
        return
    for thing in _things(described):
        for name, value in thing.items():
            if name.lower() in DATES and isinstance(value, str):
                yield name.lower(), value


def _things(described: Any) -> Iterator[dict[str, Any]]:
    waiting = described[:] if isinstance(described, list) else [described]
    for _ in range(_THINGS):
        if not waiting:
            return
        thing = waiting.pop(0)
        if isinstance(thing, dict):
            yield thing
            for inner in (thing.get("@graph"), thing.get("mainEntity")):
                waiting += inner if isinstance(inner, list) else [inner]


def canonical_in(links: Iterable[Attributes]) -> str:
    """Return the href of the first `<link rel=canonical>`, or an empty string."""
    for attributes in links:
        if "canonical" in (attributes.get("rel") or "").lower().split() and attributes.get("href"):
            return (attributes["href"] or "").strip()
    return ""
