"""Documents: which media types are indexed, the character encoding of a body, and what is extracted from it.

An encoding is found as browsers do, and guessed if it is not declared. w3lib 2.5 detects encodings, too. But it reads a
UTF-8 page that declares UTF-16 as UTF-16, and stops at an unknown label. It raises for labels such as `base64`, and
lacks some of the WHATWG Encoding standard.
"""

from __future__ import annotations

import codecs
import re
from urllib.parse import unquote

import webencodings
from charset_normalizer import from_bytes

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
_MARKUP = re.compile(rb"\s*<(?:!doctype html|html|head|body|title|meta|!--|h1|p|div|a|script|table|\?xml)[\s>/]", re.I)

#: Bytes in which browsers look for a `<meta>`.
_PRESCAN = 1024
#: Bytes in which a later `<meta>` is found. Browsers change the encoding when they come to one.
_LATE = 64 * 1024
#: Bytes that the detector reads; more cost time and did not change its guess.
_SAMPLE = 64 * 1024
#: Bytes beyond ASCII below which a guess is unreliable.
_MIN_EVIDENCE = 12
#: Encodings of the web. Without this list, charset-normalizer finds EBCDIC and UTF-16 in short texts.
_GUESSES = [
    "big5hkscs", "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp866",
    "cp874", "cp932", "cp949", "euc_jp", "gb18030", "iso2022_jp", "iso8859_10", "iso8859_13", "iso8859_14",
    "iso8859_15", "iso8859_16", "iso8859_2", "iso8859_3", "iso8859_4", "iso8859_5", "iso8859_6", "iso8859_7",
    "iso8859_8", "koi8_r", "koi8_u", "mac_cyrillic", "mac_roman",
]  # fmt: skip

_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16le"), (codecs.BOM_UTF16_BE, "utf-16be"))
_CHARSET = re.compile(r"""charset\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s;"']+))""", re.I)
_LATE_CHARSET = re.compile(rb"<meta\s[^<>]*charset", re.I)
_XML = re.compile(rb"""\s*<\?xml\s[^>]*?encoding\s*=\s*["']([A-Za-z0-9._:-]+)""")
_TAG = re.compile(rb"</?([a-z][^\s/>]*)", re.I)
#: A comment, which may be `<!-->`; a declaration, a processing instruction or an invalid end tag.
_OTHER_MARKUP = re.compile(rb"<!(?=--)(?:.*?-->|.*)|<[!/?][^>]*>?", re.S)
_ATTRIBUTE = re.compile(rb"""[\s/]*([^\s/>][^\s/>=]*)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>"'][^\s>]*)))?""")


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
    document = decode(response.body, response.headers.get("content-type", ""), is_markup=is_html)
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
    wide = "utf-16" in parameters or start.startswith(tuple(mark for mark, _ in _BOMS))
    if not wide and _BINARY_BYTE.search(start):
        return None
    if not label:
        return "text/html" if _MARKUP.match(start) else None
    return label if label in HTML or label in _TEXTS else None


def decode(body: bytes, content_type: str = "", *, is_markup: bool = True) -> str:
    """Return the text of a page; invalid bytes become U+FFFD. Never raises.

    The first of these decides: byte order mark, charset of the Content-Type header, `<meta>` in the first 1024 bytes,
    XML declaration (WHATWG HTML section 13.2.3). A `<meta>` after those is the last to be read. Without any, it is
    UTF-8 if the bytes are valid, else the detector's guess, else windows-1252. Labels are those of the WHATWG Encoding
    standard: "latin1" means windows-1252. A page that is no markup declares nothing itself: it may show how HTML does.
    """
    for mark, name in _BOMS:
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace")
    encoding = declared(body if is_markup else b"", content_type)
    if encoding is not None:
        return encoding.codec_info.decode(body, "replace")[0]
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        text = body.decode("utf-8", "replace")
    # A few invalid bytes among many valid sequences are damage, not another encoding.
    valid = sum(1 for char in text if char > "\x7f" and char != "\ufffd")
    if valid > 20 * text.count("\ufffd"):
        return text
    sample, guess = body[:_SAMPLE], "cp1252"
    if sum(byte > 0x7F for byte in sample) >= _MIN_EVIDENCE:
        found = {each.encoding: (each.chaos, -each.coherence) for each in from_bytes(sample, cp_isolation=_GUESSES)}
        # Of equally likely codecs, windows-1252 is the most common.
        guess = min(found, key=lambda name: (found[name], name != "cp1252"), default="cp1252")
    return body.decode(guess, "replace")


def declared(body: bytes, content_type: str = "") -> webencodings.Encoding | None:
    """Return the encoding that the header or else the page declares; None for a missing or unknown label."""
    by_header = _look_up(_charset_in(content_type))
    if by_header is not None:
        return by_header
    xml = _XML.match(body[:_PRESCAN])
    within = _look_up(prescan(body[:_PRESCAN])) or _look_up(xml[1].decode("ascii") if xml else None)
    if within is None and _LATE_CHARSET.search(body, _PRESCAN, _LATE):
        within = _look_up(prescan(body[:_LATE]))
    # A page whose declaration was readable as ASCII is not in UTF-16 (WHATWG HTML section 13.2.3.3).
    return webencodings.UTF8 if within is not None and within.name.startswith("utf-16") else within


def _look_up(label: str | None) -> webencodings.Encoding | None:
    encoding = webencodings.lookup(label) if label else None
    return webencodings.lookup("windows-1252") if encoding and encoding.name == "x-user-defined" else encoding


def _charset_in(text: str) -> str | None:
    found = _CHARSET.search(text)
    return next((group for group in found.groups() if group), None) if found else None


def prescan(head: bytes) -> str | None:
    """Return the label of a `<meta>` (WHATWG HTML section 13.2.3.2, "prescan a byte stream"), or None."""
    position = 0
    while (start := head.find(b"<", position)) >= 0:
        tag = _TAG.match(head, start)
        if tag is None:
            other = _OTHER_MARKUP.match(head, start)
            position = other.end() if other else start + 1
            continue
        attributes: dict[str, str] = {}
        position = tag.end()
        while found := _ATTRIBUTE.match(head, position):
            value = next((group for group in found.groups()[1:] if group is not None), b"")
            attributes.setdefault(found[1].decode("latin-1").lower(), value.decode("latin-1"))
            position = found.end()
        if head[start : start + 5].lower() == b"<meta" and tag[1].lower() == b"meta":
            label = attributes.get("charset", "").strip()
            if not label and attributes.get("http-equiv", "").lower() == "content-type":
                label = _charset_in(attributes.get("content", "")) or ""
            if _look_up(label) is not None:
                return label
    return None
