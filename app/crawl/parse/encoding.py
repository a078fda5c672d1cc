"""Decode pages: find the character encoding as browsers do, and guess one that is not declared.

w3lib 2.5 detects encodings, too. But it reads a UTF-8 page that declares UTF-16 as UTF-16, and stops at an unknown
label. It raises for labels such as `base64`, and lacks some of the WHATWG Encoding standard.
"""

from __future__ import annotations

import codecs
import re

import webencodings
from charset_normalizer import from_bytes

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
