"""Read sitemaps: XML of sitemaps.org with its index files, Atom, RSS and text, compressed by gzip or not.

Source: https://www.sitemaps.org/protocol.html.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from app.crawl.parse.classify import parsed_date
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
#: Bytes of XML that may have no row. The parser may keep them all until the end.
_MAX_UNREAD = 4 * 2**20
_GZIP = b"\x1f\x8b"
#: Parents of a URL: of the protocol, of Atom and of RSS. Each has a name for the URL and one for its date.
_ROWS = {
    "url": ("loc", "lastmod"),
    "sitemap": ("loc", "lastmod"),
    "entry": ("link", "updated"),
    "item": ("link", "pubDate"),
}
#: The end of a root, which may be empty: `<urlset/>`.
_ROOT = rb"([\w.-]+:)?(urlset|sitemapindex|feed|rss|RDF)"
_END = re.compile(rb"</" + _ROOT + rb"\s*>|<" + _ROOT + rb"(\s[^<>]*)?/>")
#: A bare ampersand, and the marks of a CDATA section, in which each is bare.
_BARE = re.compile(rb"&(?!#?\w+;)|<!\[CDATA\[|\]\]>")
#: Errors of libxml2 that leave no row out: an unknown entity or character, text before or after the root.
_HARMLESS = frozenset(
    {
        "ERR_UNDECLARED_ENTITY",
        "ERR_INVALID_CHAR",
        "ERR_INVALID_ENCODING",
        "ERR_RESERVED_XML_NAME",
        "ERR_DOCUMENT_END",
    }
)
_LINE = re.compile(r"https?://\S+")
_NO_DATE = datetime.min.replace(tzinfo=UTC)


class ReadSitemap(NamedTuple):
    """The links in scope of a sitemap, the absolute URLs of further sitemaps, and a text for the record.

    `partial`: not all of it could be read, so pages that it names may be unknown. `unproven`: robots.txt does not name
    it, or its content is no sitemap. So the site may have none. `pauses`: the response pauses its host.
    """

    pages: tuple[Link, ...] = ()
    sitemaps: tuple[str, ...] = ()
    detail: str = ""
    partial: bool = False
    unproven: bool = False
    pauses: bool = False


class _SitemapRow(NamedTuple):
    url: str
    date: datetime
    is_sitemap: bool = False


@dataclass(frozen=True, slots=True)
class Sitemap:
    """URLs as written: of `pages`, those changed last first, and of further `sitemaps`.

    `partial`: it is damaged, longer than a limit, or no sitemap.
    """

    pages: tuple[str, ...] = ()
    sitemaps: tuple[str, ...] = ()
    partial: bool = False


def sitemap_of(response: Response, *, scope: Scope) -> ReadSitemap:
    """Return the content of a sitemap's response: of its pages those in the scope."""
    found = read_sitemap(response.body)
    anchors = ((url, "") for url in found.pages)
    # Bounded already: as links of a page, URLs with many escapes would be left out.
    pages, _ = links_in_scope(response.url, anchors, scope=scope, limit=MAX_BYTES)
    sitemaps = tuple(url for each in found.sitemaps if (url := resolve(response.url, each)))
    detail = f"{len(pages)} of {len(found.pages)} URLs, {len(sitemaps)} sitemaps"
    partial = found.partial or response.truncated
    return ReadSitemap(
        pages,
        sitemaps,
        f"{detail}; it is damaged or too large" if partial else detail,
        partial=partial,
        unproven=not found.pages and not found.sitemaps,
    )


def read_sitemap(body: bytes) -> Sitemap:
    """Return the content of a sitemap. Never raises: of a damaged one, what is before the damage is read.

    No entity of a document type is expanded, and nothing is loaded.
    """
    faults: list[str] = []
    if body.startswith(_GZIP):
        chunks = _inflated(body, faults)
    else:
        faults += ["too large"] if len(body) > MAX_BYTES else []
        chunks = (body[start : start + _CHUNK] for start in range(0, min(len(body), MAX_BYTES), _CHUNK))
    first = next(chunks, b"")
    start = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    is_xml = start.startswith(b"<") or first.startswith((b"\xff\xfe", b"\xfe\xff"))
    rows = _xml_rows(first, chunks, faults) if is_xml else _text_rows(first, chunks)
    found = list(islice(rows, MAX_URLS))
    if next(rows, None) is not None or not (found or is_xml):
        faults.append("too many URLs, or none")
    found.sort(key=lambda row: row.date, reverse=True)
    return Sitemap(
        tuple(dict.fromkeys(row.url for row in found if not row.is_sitemap)),
        tuple(dict.fromkeys(row.url for row in found if row.is_sitemap)),
        partial=bool(faults),
    )


def _inflated(body: bytes, faults: list[str]) -> Iterator[bytes]:
    """Yield the content of a gzip file in parts, at most MAX_BYTES. Add a fault if there is more, or if it is cut.

    It may have several members (RFC 1952 section 2.2), and zeros behind the last one.
    """
    inflate, left = zlib.decompressobj(31), MAX_BYTES
    with suppress(zlib.error):
        for start in range(0, len(body), _CHUNK):
            data = body[start : start + _CHUNK]
            while data and left > 0:
                if inflate.eof:
                    data = data.lstrip(b"\0")
                    if not data.startswith(_GZIP[:1]):
                        break
                    inflate = zlib.decompressobj(31)
                part = inflate.decompress(data, min(_CHUNK, left))
                data = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
                left -= len(part)
                if part:
                    yield part
    if not inflate.eof:
        faults.append("too large, cut, or damaged")


def _text_rows(first: bytes, chunks: Iterable[bytes]) -> Iterator[_SitemapRow]:
    rest = b""
    for chunk in chain((first,), chunks, (b"\n",)):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _CHUNK:  # No URL is as long.
            rest = b""
        for line in lines:
            if found := _LINE.match(line.decode("utf-8-sig", "replace").strip()):
                yield _SitemapRow(found[0], _NO_DATE)


def _with_escapes(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield XML with its bare ampersands escaped, of which URLs are full: the parser would leave `&name` out."""
    is_bare, rest = False, b""

    def escaped(found: re.Match[bytes]) -> bytes:
        nonlocal is_bare
        if found[0] == b"&":
            return b"&" if is_bare else b"&amp;"
        is_bare = found[0].startswith(b"<")
        return found[0]

    for chunk in chunks:
        text, mark, rest = (rest + chunk).rpartition(b"<")  # No match begins before a `<` and ends after it.
        yield _BARE.sub(escaped, text)
        rest = mark + rest
        if len(rest) > _CHUNK:
            yield _BARE.sub(escaped, rest)
            rest = b""
    yield _BARE.sub(escaped, rest)


def _xml_rows(first: bytes, chunks: Iterable[bytes], faults: list[str]) -> Iterator[_SitemapRow]:
    """Yield the rows of XML. Add a fault if a row may be missing: the root has no end, or the parser left text out."""
    from lxml import etree

    parser = etree.XMLPullParser(
        events=("end",), recover=True, resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False,
        remove_comments=True, remove_pis=True,
    )  # fmt: skip
    end, unread = b"", 0
    chunks = chain((first,), chunks)
    with suppress(etree.XMLSyntaxError):
        for chunk in chunks if b"\0" in first else _with_escapes(chunks):  # UTF-16 is read as it is.
            end, unread = (end + chunk)[-_CHUNK:], unread + len(chunk)
            if unread > _MAX_UNREAD:
                break
            parser.feed(chunk)
            for row in _rows_in(parser):
                unread = 0
                yield row
        else:
            parser.close()
    yield from _rows_in(parser)
    errors = (each for each in parser.feed_error_log if each.level == etree.ErrorLevels.FATAL)
    # Without the zeros of UTF-16.
    if not _END.search(end.replace(b"\0", b"")) or any(each.type_name not in _HARMLESS for each in errors):
        faults.append("cut, damaged, or no sitemap")


def _rows_in(parser: etree.XMLPullParser) -> Iterator[_SitemapRow]:
    """Yield the rows that the parser has read, and free them with the elements before them.

    An element has the URL of a page, and those of the page in other languages.
    """
    for _, element in parser.read_events():
        name = _name(element)
        if name not in _ROWS:
            continue
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
        yield from (_SitemapRow(url, date, name == "sitemap") for url in urls if url)
        # The tree of a large sitemap would take ten times its bytes.
        element.clear()
        parent = element.getparent()
        while parent is not None and element.getprevious() is not None:
            del parent[0]


def _name(element: etree._Element) -> str:
    tag = element.tag
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""
