"""The key scheme of the store: where a page's content and a domain's pack live."""

from __future__ import annotations

import re
import uuid
from typing import Final

from app.errors import InvalidKey

#: Every manifest's key begins and ends so, and no other object's does.
MANIFEST_PREFIX: Final = "packs/"
MANIFEST_SUFFIX: Final = ".json"

#: Bytes of a key in UTF-8: S3's own limit.
MAX_KEY_BYTES: Final = 1024
#: Bytes of one segment: file systems take 255.
MAX_SEGMENT_BYTES: Final = 255
#: Bytes that an XML listing cannot carry, or that end a path early.
CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")
#: Segments that mean something else in a folder.
NO_NAMES: Final = frozenset({b"", b".", b".."})


def check_key(key: str) -> str:
    """Return the key; raises InvalidKey for one that some store could not hold or that would leave a folder."""
    reason = _fault(key)
    if reason:
        raise InvalidKey(f"key {key[:200]!r}: {reason}")
    return key


def _fault(key: str) -> str:
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        return "not valid Unicode"
    if len(encoded) > MAX_KEY_BYTES:
        return f"longer than {MAX_KEY_BYTES} bytes"
    if CONTROL.search(encoded):
        return "contains a control character"
    segments = encoded.split(b"/")
    if not NO_NAMES.isdisjoint(segments):
        return "a segment is empty, '.' or '..'"
    if max(map(len, segments)) > MAX_SEGMENT_BYTES:
        return f"a segment is longer than {MAX_SEGMENT_BYTES} bytes"
    return ""


def page_id(canonical_key: str) -> str:
    """Return the identity of a page: the UUID v5 of its canonical URL."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, canonical_key))


def content_prefix(domain: str) -> str:
    """Return the prefix of all pages of a domain."""
    return f"content/{domain}/"


def content_key(domain: str, page: str) -> str:
    """Return the key of the latest copy of the page with this identity."""
    return f"{content_prefix(domain)}{page}.json"


def pack_key(domain: str) -> str:
    """Return the key of a domain's pack, a zstd-compressed SQLite database."""
    return f"packs/{domain}.sqlite.zst"


def manifest_key(domain: str) -> str:
    """Return the key of the JSON that describes a domain's pack: sha256, size, pages, schema version, generation."""
    return f"{MANIFEST_PREFIX}{domain}{MANIFEST_SUFFIX}"
