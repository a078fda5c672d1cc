"""Read sitemaps: XML of sitemaps.org with its index files, Atom, RSS and text, compressed by gzip or not.

Source: https://www.sitemaps.org/protocol.html.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from app.crawl.classify import parsed_date
from app.crawl.urls import Link, Scope, links_in_scope, resolve
from app.http.response import Response

if TYPE_CHECKING:
    from lxml import etree

#: Bytes of a sitemap after decompression, and its URLs: the limits of the protocol. What is after them is not read.
MAX_BYTES = 50 * 2**20
MAX_URLS = 50_000
#: Messages between a start page and a sitemap: robots.txt, index files, redirects.
MAX_NESTING = 10
#: Where a sitemap is that robots.txt does not name.
DEFAULT_PATH = "/sitemap.xml"

_CHUNK = 65_536
_GZIP = b"\x1f\x8b"
#: Parents of a URL: of the protocol, of Atom and of RSS. Each has a name for the URL and one for its date.
_ROWS = {
    "url": ("loc", "lastmod"),
    "sitemap": ("loc", "lastmod"),
    "entry": ("link", "updated"),
    "item": ("link", "pubDate"),
}
_LINE = re.compile(r"https?://\S+")
_NO_DATE = datetime.min.replace(tzinfo=UTC)


class ReadSitemap(NamedTuple):
    """The links in scope of a sitemap, the absolute URLs of further sitemaps, and a text for the record.

    `failed`: it could not be read, so what it leads to is unknown.
    """

    pages: tuple[Link, ...]
    sitemaps: tuple[str, ...]
    detail: str
    failed: bool = False


class _Row(NamedTuple):
    url: str
    date: datetime
    is_sitemap: bool = False


@dataclass(frozen=True, slots=True)
class Sitemap:
    """URLs as written: of `pages`, those changed last first, and of further `sitemaps`."""

    pages: tuple[str, ...] = ()
    sitemaps: tuple[str, ...] = ()


def sitemap_of(response: Response, *, scope: Scope, max_length: int) -> ReadSitemap:
    """Return the content of a sitemap's response: of its pages those in the scope."""
    found = read_sitemap(response.body)
    anchors = ((url, "") for url in found.pages)
    pages, _ = links_in_scope(response.url, anchors, scope=scope, limit=MAX_URLS, max_length=max_length)
    sitemaps = tuple(url for each in found.sitemaps if (url := resolve(response.url, each, max_length=max_length)))
    return ReadSitemap(pages, sitemaps, f"{len(pages)} of {len(found.pages)} URLs, {len(sitemaps)} sitemaps")


def read_sitemap(body: bytes) -> Sitemap:
    """Return the content of a sitemap. Never raises: of a damaged one, what is before the damage is read.

    No entity of a document type is expanded, and nothing is loaded.
    """
    chunks = _inflated(body) if body.startswith(_GZIP) else _chunks(body)
    first = next(chunks, b"")
    start = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    is_xml = start.startswith(b"<") or first.startswith((b"\xff\xfe", b"\xfe\xff"))
    rows = _xml_rows(first, chunks) if is_xml else _text_rows(first, chunks)
    found = []
    for row in rows:
        found.append(row)
        if len(found) >= MAX_URLS:
            break
    found.sort(key=lambda row: row.date, reverse=True)
    return Sitemap(
        tuple(dict.fromkeys(row.url for row in found if not row.is_sitemap)),
        tuple(dict.fromkeys(row.url for row in found if row.is_sitemap)),
    )


def _chunks(body: bytes) -> Iterator[bytes]:
    for start in range(0, min(len(body), MAX_BYTES), _CHUNK):
        yield body[start : start + _CHUNK]


def _inflated(body: bytes) -> Iterator[bytes]:
    """Yield the content of a gzip file in parts, at most MAX_BYTES."""
    inflate, left = zlib.decompressobj(31), MAX_BYTES
    data = body
    while data and left > 0 and not inflate.eof:
        try:
            part = inflate.decompress(data, min(_CHUNK, left))
        except zlib.error:
            return
        data = inflate.unconsumed_tail
        left -= len(part)
        if part:
            yield part


def _text_rows(first: bytes, chunks: Iterable[bytes]) -> Iterator[_Row]:
    rest = b""
    for chunk in chain((first,), chunks, (b"\n",)):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _CHUNK:  # No URL is as long.
            rest = b""
        for line in lines:
            if found := _LINE.match(line.decode("utf-8-sig", "replace").strip()):
                yield _Row(found[0], _NO_DATE)


def _xml_rows(first: bytes, chunks: Iterable[bytes]) -> Iterator[_Row]:
    from lxml import etree

    parser = etree.XMLPullParser(
        events=("end",), recover=True, resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False,
        remove_comments=True, remove_pis=True,
    )  # fmt: skip
    for chunk in chain((first,), chunks):
        try:
            parser.feed(chunk)
        except etree.XMLSyntaxError:
            return
        for _, element in parser.read_events():
            name = _name(element)
            if name in _ROWS:
                yield from _rows_of(element, name)
                _forget(element)


def _rows_of(element: etree._Element, name: str) -> Iterator[_Row]:
    """Yield the URL of an element, and those of the page in other languages."""
    kind, dated = _ROWS[name]
    urls: list[str] = []
    date = _NO_DATE
    for child in element:
        inner = _name(child)
        if inner == kind and child.get("rel", "alternate") == "alternate":
            urls.append((child.get("href") or child.text or "").strip())
        elif inner == "link" and child.get("hreflang"):
            urls.append((child.get("href") or "").strip())
        elif inner == dated:
            date = parsed_date((child.text or "").strip()) or _NO_DATE
    for url in urls:
        if url:
            yield _Row(url, date, name == "sitemap")


def _forget(element: etree._Element) -> None:
    """Free an element and those before it: the tree of a large sitemap would take ten times its bytes."""
    element.clear()
    parent = element.getparent()
    while parent is not None and element.getprevious() is not None:
        del parent[0]


def _name(element: etree._Element) -> str:
    tag = element.tag
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""
