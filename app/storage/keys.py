"""The key scheme of the store: where a page's content and a domain's pack live."""

from __future__ import annotations

import uuid
from typing import Final

#: Every manifest's key begins and ends so, and no other object's does.
MANIFEST_PREFIX: Final = "packs/"
MANIFEST_SUFFIX: Final = ".json"


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
