"""The contract of an extractor: HTML in, an Extract out; the rules that every extractor follows, and its limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import isqrt
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote

from app.broker.nesting import read_json
from app.crawl.parse.extract.boilerplate import BOILERPLATE, HEADER, NEVER_BOILERPLATE
from app.storage import page_parts
from app.storage.page_parts import CODE, LIST, MAX_ANCHOR, MAX_ID, TABLE, Block, Term
from app.text.anchor_texts import joined_texts
from app.text.names import is_named_after
from app.text.words import normal

#: The product token of a crawler without another one: `<meta name="...">` addresses it alone by this.
OWN_NAME = "Perennial"

#: Elements whose content is never text: removed before anything but links is read.
NOT_TEXT = ("script", "style", "noscript", "template", "svg", "noframes", "select", "datalist")
#: These may occur within a word; the edge of every other element is the edge of a word.
INLINE = (
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i", "ins",
    "kbd", "label", "mark", "q", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u",
    "var", "wbr",
)  # fmt: skip

#: Names of a page's date in `<meta>` and JSON-LD, lower case: those of its last change, then of its publication.
DATES = (
    "article:modified_time", "datemodified", "dcterms.modified", "dc.date.modified", "last-modified",
    "article:published_time", "datepublished", "dcterms.date", "dc.date", "date", "dcterms.created", "dc.date.issued",
)  # fmt: skip
#: A `<time>` outside of these is the date of something else.
MAIN = ("main", "article")
#: Characters of a date that are read.
_MAX_DATE_LENGTH = 40
#: Objects of a JSON-LD script that are read.
_MAX_JSON_LD_OBJECTS = 50

#: Documentation generators put a link to each heading at its end, with one of these signs as its text.
#: `re` finds a pattern quickly if it begins with a character, which here is followed by what precedes it.
_PERMALINKS_IN_TEXT = {sign: re.compile(f"{sign}(?<=\\S.)(?=\\s|$)") for sign in "¶🔗\uf0c1"}
_PERMALINK_AT_END = re.compile(
    "(?:\\s*[¶§🔗\uf0c1]|\\s+#|\\s*(?:Link|Direct link|Permalink) to this (?:heading|headline|section|definition))+$"
)

_ENDS_OF_PERMALINKS = ("¶", "§", "🔗", "\uf0c1", "#", "heading", "headline", "section", "definition")

HEADINGS = page_parts.HEADINGS
#: Elements whose text is a block of its own kind.
KINDS = {"ol": LIST, "ul": LIST, "pre": CODE, "table": TABLE} | {name: name for name in HEADINGS}

#: Elements that `marks` knows by their names.
STRUCTURE = frozenset({*KINDS, *BOILERPLATE, HEADER, *NEVER_BOILERPLATE})

#: What defines a name outside of headings: a term of a list, and code right behind an anchor.
DEFINED = "dt"
ANCHORED = "code"

#: A list in one of these belongs to the list around it.
ITEM = "li"

#: Seconds up to which a `<meta http-equiv=refresh>` is a redirect. A longer one shows its page.
MAX_REFRESH = 5
_REFRESH = re.compile(
    r"""\s*(\d{1,9})(?:\.[\d.]*)?(?:\s*[;,]|\s)\s*(?>(?:url\s*=\s*)?)(?:"([^"]*)(?:".*)?|'([^']*)(?:'.*)?|([^"'].*)|)""",
    re.I | re.S,
)

#: Different texts of links from one page to another.
_MAX_TEXTS = 200

#: Elements that lead to other pages, and the attribute with the URL.
LINKS = {"a": "href", "area": "href", "frame": "src", "iframe": "src"}

# Deep nesting takes a parser quadratic time: what a document would cost is estimated before it is parsed.

#: Sum of the depths of all elements. A documentation page of 4 MB has about two million; ten take under two seconds.
MAX_WORK = 10_000_000
#: The same for formatting elements alone, which a parser opens again in every paragraph until they are closed.
MAX_FORMATTING_WORK = 2_000_000
#: Attributes of an element, options of a page, and repetitions of <html> and <body>: each is compared with all others.
MAX_SIBLINGS = 10_000

#: Characters in which the quick estimate counts tags.
_CHUNK = 2_048
_TAG = re.compile(r"<(/?[a-z][a-z0-9]*)", re.I)
#: As many tags cost at most MAX_WORK.
_FEW_TAGS = isqrt(MAX_WORK)
#: A tag in which MAX_SIBLINGS attributes have room.
_LONG_TAG = re.compile(rf"<[a-z][^<>]{{{2 * MAX_SIBLINGS}}}[^<>]*", re.I)
#: From the first white space or slash after a name or value: a match from each of them would take quadratic time.
_ATTRIBUTE = re.compile(r"""(?<![\s/])[\s/]++[^\s=>"'/]+(?:\s*=\s*(?:"[^"]*"|'[^']*'|[^\s>]+))?""")
#: Elements without content, and those that the next of their kind closes.
_NEVER_NESTED = (
    "a", "area", "base", "body", "br", "col", "dd", "dt", "embed", "head", "hr", "html", "img", "input", "li", "link",
    "meta", "nobr", "optgroup", "option", "p", "param", "rp", "rt", "source", "tbody", "td", "tfoot", "th", "thead",
    "tr", "track", "wbr",
)  # fmt: skip
_FORMATTING = ("b", "big", "code", "em", "font", "i", "s", "small", "strike", "strong", "tt", "u")
_COMPARED = ("option", "html", "body")

_BLANK_LINES = re.compile(r"\n[ \t\r\f\v]*\n")

Attributes = Mapping[str, str | None]
Node = TypeVar("Node")
#: The value of an attribute that is not there; None is that of one without a value.
_MISSING = "\0"


class Anchor(NamedTuple):
    """A link: its attribute value as written, without its fragment; its texts, one a line, cut by `joined_texts`.

    A text that names the fragment is followed by a tab and the fragment.
    """

    href: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extract:
    """The content of a document. White space in texts is collapsed; links are attribute values as written."""

    title: str = ""
    description: str = ""
    headings: tuple[str, ...] = ()
    body: str = ""
    #: All text, also that of boilerplate.
    blocks: tuple[Block, ...] = ()
    #: What the document defines outside of its headings.
    terms: tuple[Term, ...] = ()
    lang: str = ""
    #: `<base href>`.
    base: str = ""
    #: `<link rel=canonical>`.
    canonical: str = ""
    #: `<link rel=alternate hreflang>`: the page in other languages.
    alternates: tuple[str, ...] = ()
    #: The URL of a `<meta http-equiv=refresh>` of at most `MAX_REFRESH` seconds, outside of `<noscript>`.
    refresh: str = ""
    #: Directives of `<meta>` for all robots and for this one, lower case: noindex, nofollow, none...
    robots: frozenset[str] = frozenset()
    #: The document's own dates as written: of the last change before those of publication.
    dates: tuple[str, ...] = ()
    #: href of a and area, src of frame and iframe, in document order: see `links_to_follow`.
    links: tuple[Anchor, ...] = ()
    #: The same of links with rel=nofollow, unless another link leads there.
    nofollow: tuple[str, ...] = ()


class Extractor(Protocol):
    """Finds in an HTML document what is indexed, and which links a crawler with the product token `robot` follows."""

    robot: str

    def extract(self, document: str) -> Extract:
        """Return the content of the document; never raises for bad markup."""


def collapsed(text: str) -> str:
    """Return the text in Unicode's normal form with white space collapsed, and without soft hyphens in its words."""
    return " ".join(normal(text.replace("\xad", "")).split())


def paragraphs(text: str) -> tuple[str, ...]:
    """Return the paragraphs of a plain text, which blank lines separate, each collapsed."""
    return tuple(filter(None, map(collapsed, _BLANK_LINES.split(text))))


def links_to_follow(
    elements: Iterable[tuple[str, Attributes, Node]], text_of: Callable[[Node], str]
) -> tuple[tuple[Anchor, ...], tuple[str, ...]]:
    """Return the links of elements of `LINKS`, given by name, attributes and node, and those of rel=nofollow alone.

    Links that differ only in their fragment are one link with their different texts, one a line. White space before a
    fragment is part of the path; at the end of a URL it would be stripped, so such a fragment stays.
    """
    found: dict[str, dict[str, None]] = {}
    nofollow: dict[str, None] = {}
    for name, attributes, node in elements:
        if (href := attributes.get(LINKS[name], _MISSING)) == _MISSING:
            continue
        href, fragment = href or "", ""
        if "#" in href and not (cut := href.partition("#"))[0][-1:].isspace():
            href, _, fragment = cut
        if (rel := attributes.get("rel")) and "nofollow" in rel.lower().split():
            nofollow[href] = None
            continue
        texts = found.setdefault(href, {})
        if len(texts) >= _MAX_TEXTS:
            continue
        text = collapsed(text_of(node))[:MAX_ANCHOR]
        if fragment and text:
            fragment = unquote(fragment) if "%" in fragment else fragment
            if len(fragment) <= MAX_ID and fragment.isprintable() and is_named_after(fragment, text):
                text = f"{text}\t{fragment}"
        texts[text] = None
    links = tuple(Anchor(href, joined_texts(texts)) for href, texts in found.items())
    return links, tuple(href for href in nofollow if href not in found)


def texts_of(links: Iterable[Anchor]) -> frozenset[str]:
    """Return the texts of links."""
    return frozenset(text.partition("\t")[0] for link in links for text in link.text.split("\n"))


def description_and_directives(metas: Iterable[Attributes], robot: str) -> tuple[str, frozenset[str]]:
    """Return the description of `<meta>` elements, and their directives for all robots and for the one of this name.

    A description for links on other sites, `og:description`, stands in for one that is missing.
    """
    description = shared = ""
    directives: set[str] = set()
    for attributes in metas:
        name = (attributes.get("name") or "").strip().lower()
        content = attributes.get("content") or ""
        if name == "description":
            description = description or collapsed(content)
        elif name in ("robots", robot.lower()):
            directives.update(part.strip().lower() for part in content.split(","))
        elif attributes.get("property") == "og:description":
            shared = shared or collapsed(content)
    return description or shared, frozenset(directives - {""})


def shared_title(metas: Iterable[Attributes]) -> str:
    """Return the title for links on other sites (https://ogp.me/#metadata), or an empty string."""
    titles = (attributes.get("content") or "" for attributes in metas if attributes.get("property") == "og:title")
    return next(filter(None, map(collapsed, titles)), "")


def heading(text: str) -> str:
    """Return a heading without the permalink at its end."""
    # The pattern is searched for from every character.
    return _PERMALINK_AT_END.sub("", text) if text.endswith(_ENDS_OF_PERMALINKS) else text


def without_permalinks(text: str) -> str:
    """Return a page's text without the permalink signs at the ends of headings and definitions."""
    for sign, pattern in _PERMALINKS_IN_TEXT.items():
        if sign in text:
            text = pattern.sub("", text)
    return text


def dates_in(metas: Iterable[Attributes], scripts: Iterable[str], times: Iterable[Attributes]) -> tuple[str, ...]:
    """Return a document's own dates, those of its last change before those of its publication.

    `metas` are its `<meta>` elements, `scripts` the texts of its `<script type="application/ld+json">`
    (https://schema.org/dateModified). `times` are its `<time>` elements within the main text: the first one with a
    date counts.
    """
    named = [
        (name, attributes.get("content") or "")
        for attributes in metas
        for kind in ("property", "name", "itemprop", "http-equiv")
        if kind in attributes and (name := (attributes[kind] or "").strip().lower()) in DATES
    ]
    first: dict[str, str] = {}
    for name, text in (*named, *(pair for script in scripts for pair in _json_ld_dates(script))):
        if text.strip():
            first.setdefault(name, text.strip()[:_MAX_DATE_LENGTH])
    ranked = sorted((DATES.index(name), text) for name, text in first.items())
    shown = next((attributes["datetime"] or "" for attributes in times if "datetime" in attributes), "")
    return tuple(text for text in (*(text for _, text in ranked), shown.strip()[:_MAX_DATE_LENGTH]) if text)


def is_json_ld(script: Attributes) -> bool:
    """Return whether a `<script>` with these attributes contains JSON-LD."""
    return (script.get("type") or "").strip().lower() == "application/ld+json"


def _json_ld_dates(script: str) -> Iterator[tuple[str, str]]:
    """Yield the dates of the objects in a JSON-LD script and of their main entities, not of their parts."""
    if "date" not in script:
        return
    try:
        parsed = read_json(script)
    except ValueError:
        return
    waiting: list[Any] = parsed[:] if isinstance(parsed, list) else [parsed]
    for _ in range(_MAX_JSON_LD_OBJECTS):
        if not waiting:
            return
        entity = waiting.pop(0)
        if not isinstance(entity, dict):
            continue
        for name, value in entity.items():
            if name.lower() in DATES and isinstance(value, str):
                yield name.lower(), value
        for inner in (entity.get("@graph"), entity.get("mainEntity")):
            waiting += inner if isinstance(inner, list) else [inner]


def canonical_in(links: Iterable[Attributes]) -> str:
    """Return the href of the first `<link rel=canonical>`, or an empty string."""
    for attributes in links:
        if "canonical" in (attributes.get("rel") or "").lower().split() and attributes.get("href"):
            return (attributes["href"] or "").strip()
    return ""


def alternates_in(links: Iterable[Attributes]) -> tuple[str, ...]:
    """Return the hrefs of `<link rel=alternate hreflang>`."""
    return tuple(
        href
        for attributes in links
        if attributes.get("hreflang") and "alternate" in (attributes.get("rel") or "").lower().split()
        if (href := (attributes.get("href") or "").strip())
    )


def is_refresh(meta: Attributes) -> bool:
    """Return whether a `<meta>` with these attributes reloads the page or leads to another one."""
    return (meta.get("http-equiv") or "").strip().lower() == "refresh"


def refresh_in(metas: Iterable[Attributes]) -> str:
    """Return the URL that the first `<meta http-equiv=refresh>` leads to within `MAX_REFRESH` seconds, or "".

    Source: WHATWG HTML, "shared declarative refresh steps".
    """
    for attributes in metas:
        found = _REFRESH.fullmatch(attributes.get("content") or "")
        if found is None or int(found[1]) > MAX_REFRESH:
            return ""
        return next((url.strip() for url in found.groups()[1:] if url), "")
    return ""


class _Steps(dict[str, int]):
    """By how much a tag changes the depth."""

    def __missing__(self, name: str) -> int:
        return -1 if name.startswith("/") else 1


_ALL = _Steps({mark + name: 0 for name in _NEVER_NESTED for mark in ("", "/")})
_FORMATTING_ONLY = {mark + name: step for name in _FORMATTING for mark, step in (("", 1), ("/", -1))}


def excess_complexity(document: str) -> str:
    """Return why a document would cost a parser too much, or an empty string for an ordinary one.

    The estimate is linear in the document's length. It is not a parser: markup that is made to deceive it may pass.
    """
    # Even if every tag were nested in all others: most pages have no more tags, and no text as long as such a tag.
    tags = document.count("<")
    if tags > _FEW_TAGS:
        tags -= document.count("</")
    if tags <= _FEW_TAGS and all(
        document.find("<", start, start + MAX_SIBLINGS) >= 0 for start in range(0, len(document), MAX_SIBLINGS)
    ):
        return ""
    work, silence = _quick_estimate(document)
    if silence >= MAX_SIBLINGS and any(
        sum(1 for _ in _ATTRIBUTE.finditer(tag[0])) > MAX_SIBLINGS for tag in _LONG_TAG.finditer(document)
    ):
        return f"an element has over {MAX_SIBLINGS} attributes"
    options = document.count("<option") + document.count("<OPTION")
    if work <= MAX_WORK and options <= MAX_SIBLINGS:
        return ""
    names = [name.lower() for name in _TAG.findall(document)]
    if any(names.count(name) > MAX_SIBLINGS for name in _COMPARED):
        return f"it has over {MAX_SIBLINGS} {', '.join(_COMPARED[:-1])} or {_COMPARED[-1]} tags"
    if _work([_ALL[name] for name in names]) > MAX_WORK:
        return "its elements are nested too deeply"
    if _work([_FORMATTING_ONLY.get(name, 0) for name in names]) > MAX_FORMATTING_WORK:
        return "its formatting elements are not closed"
    return ""


def _quick_estimate(document: str) -> tuple[int, int]:
    """Return at least the sum of depths, and about the most characters without a tag; every tag counts as nested."""
    work = depth = lowest = silence = longest = 0
    for start in range(0, len(document), _CHUNK):
        tags = document.count("<", start, start + _CHUNK)
        opened = tags - document.count("</", start, start + _CHUNK)
        work += opened * (depth - lowest + opened)
        depth += 2 * opened - tags
        if depth < lowest:
            lowest = depth
        silence = 0 if tags else silence + _CHUNK
        if silence > longest:
            longest = silence
    return work, longest


def _work(steps: list[int]) -> int:
    """Return the sum of depths. An end tag too many does not make what follows less deep."""
    depths = list(accumulate(steps))
    return sum(depths) - sum(accumulate(depths, min))
