"""Documents by media type: which types are indexed, and what is extracted from a body."""

from __future__ import annotations

import re
from urllib.parse import unquote

from app.crawl.parse import encoding
from app.crawl.parse.extract.contract import Extract, Extractor, collapsed, excess_complexity, paragraphs
from app.crawl.parse.extract.pdf import extract_pdf
from app.crawl.urls import path_of
from app.http.response import Response
from app.storage.page_parts import Block

_XHTML = "application/xhtml+xml"
HTML = frozenset({"text/html", _XHTML})
#: An element of XML that is empty, and the elements of which HTML knows it.
_EMPTY = re.compile(r"<([A-Za-z][\w:.-]*)((?:\s[^<>]*)?)/>")
_VOID = frozenset({
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr",
})  # fmt: skip
_PLAIN = "text/plain"
#: Media types of text that is no HTML.
_TEXTS = frozenset({_PLAIN, "text/markdown", "text/x-markdown"})
_PDF = "application/pdf"
_PDF_START = b"%PDF-"
#: Labels of a PDF: some servers do not know the type.
_PDF_LABELS = frozenset({_PDF, "application/x-pdf", "application/octet-stream", ""})
#: Bytes at the beginning of a body that show what it is.
_SNIFFED = 512
_BINARY_STARTS = (
    _PDF_START,
    b"\x89PNG",
    b"GIF8",
    b"\xff\xd8\xff",
    b"PK\x03\x04",
    b"\x1f\x8b",
    b"RIFF",
    b"\xd0\xcf\x11\xe0",
    b"7z\xbc\xaf",
)
#: WHATWG MIME Sniffing section 3, "binary data byte".
_BINARY_BYTE = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_UNICODE_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_MARKUP = re.compile(rb"\s*<(?:!doctype html|html|head|body|title|meta|!--|h1|p|div|a|script|table|\?xml)[\s>/]", re.I)


class TooComplex(Exception):
    """A document that would take a parser too much time."""


def extract_document(response: Response, media_type: str, extractor: Extractor) -> Extract:
    """Return the content of a body; raises TooComplex and UnreadablePdf."""
    # The last part of the URL's path as people read it, without escapes and what cannot be shown.
    last_part = unquote(path_of(response.url).partition("?")[0].rstrip("/").rpartition("/")[2])
    name = "".join(filter(str.isprintable, collapsed(last_part)))
    if media_type == _PDF:
        return extract_pdf(response.body, name=name)
    is_html = media_type in HTML
    document = encoding.decode(response.body, response.headers.get("content-type", ""), is_markup=is_html)
    if not is_html:
        lines = paragraphs(document)
        return Extract(title=name, body=collapsed(document), blocks=(Block(lines),) if lines else ())
    if media_type == _XHTML:  # HTML has no other empty elements: it would take what follows for their content.
        document = _EMPTY.sub(lambda tag: tag[0] if tag[1] in _VOID else f"<{tag[1]}{tag[2]}></{tag[1]}>", document)
    if excess := excess_complexity(document):
        raise TooComplex(excess)
    return extractor.extract(document)


def needs_script(response: Response, media_type: str) -> bool:
    """Return whether a document without text may show some by JavaScript; a PDF without text is scanned."""
    return media_type == _PDF or (media_type in HTML and b"<script" in response.body.lower())


def indexable_type(response: Response) -> str | None:
    """Return the media type under which a body is indexed; None unless its Content-Type and first bytes allow it.

    A body without a Content-Type is HTML if it begins like HTML (WHATWG MIME Sniffing section 7.1).
    """
    label, _, parameters = response.headers.get("content-type", "").lower().partition(";")
    label = label.strip()
    start = response.body[:_SNIFFED]
    if start.startswith(_PDF_START) and label in _PDF_LABELS:
        return _PDF
    if start.startswith(_BINARY_STARTS):
        return None
    wide = "utf-16" in parameters or start.startswith(_UNICODE_BOMS)
    if not wide and _BINARY_BYTE.search(start):
        return None
    if not label:
        return "text/html" if _MARKUP.match(start) else None
    return label if label in HTML or label in _TEXTS else None
