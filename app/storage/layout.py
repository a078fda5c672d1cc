"""What the store holds, and under which keys: pages and tombstones, packs and manifests."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from app.errors import ObjectNotFound, StoreError
from app.storage.store import ObjectStore

#: Keys of pages begin with this.
CONTENT_PREFIX: Final = "content/"
#: Only the keys of manifests begin and end with these.
MANIFEST_PREFIX: Final = "packs/"
MANIFEST_SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The readable content of one page. It holds no time of fetching, so an unchanged page is an unchanged object."""

    canonical_key: str
    url: str
    domain: str
    #: Path of the URL, with the query.
    path: str
    title: str = ""
    description: str = ""
    headings: tuple[str, ...] = ()
    body: str = ""
    lang: str = ""
    content_type: str = "text/html"
    #: Canonical key of the page's `rel=canonical`, when it is in scope and differs from `canonical_key`; else empty.
    canonical: str = ""
    #: Date of the page's own metadata or of its server: `2026-11-21`; else empty.
    modified: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """A page that is gone. `why` is `404`, `410`, `noindex`, `redirect` or `vanished`."""

    canonical_key: str
    url: str
    domain: str
    why: str


def page_id(canonical_key: str) -> str:
    """Return a page's id: the UUID v5 of its canonical key."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, canonical_key))


def content_prefix(domain: str) -> str:
    """Return the prefix of the object keys of a domain's pages."""
    return f"{CONTENT_PREFIX}{domain}/"


def content_key(domain: str, page_id: str) -> str:
    """Return the object key of a page."""
    return f"{content_prefix(domain)}{page_id}.json"


def pack_key(domain: str) -> str:
    """Return the object key of a domain's pack, a zstd-compressed SQLite database."""
    return f"packs/{domain}.sqlite.zst"


def manifest_key(domain: str) -> str:
    """Return the object key of the manifest of a domain's pack."""
    return f"{MANIFEST_PREFIX}{domain}{MANIFEST_SUFFIX}"


def announcement_key(domain: str) -> str:
    """Return the object key of the checksum of the pack whose `update` was published last."""
    return f"packs/{domain}.announced"


def read_content(store: ObjectStore, object_key: str) -> Page | Tombstone | None:
    """Return the stored page or tombstone, or None for a missing object; raises StoreError for any other content."""
    try:
        return from_json(store.get(object_key).data)
    except ObjectNotFound:
        return None


def to_json(content: Page | Tombstone) -> bytes:
    """Serialise with sorted keys, so that equal content has equal bytes."""
    fields = to_fields(content) | {"kind": "page" if isinstance(content, Page) else "tombstone"}
    return json.dumps(fields, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def from_json(data: bytes) -> Page | Tombstone:
    """Read the output of `to_json`; raises StoreError for any other bytes."""
    try:
        fields: dict[str, Any] = json.loads(data)
        kind = fields.pop("kind")
        return page_from_fields(fields) if kind == "page" else Tombstone(canonical_key=fields.pop("key"), **fields)
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"not a stored page: {error!r}: {data[:80]!r}") from error


def to_fields(content: Page | Tombstone) -> dict[str, Any]:
    """Return the JSON fields of a page or tombstone; `key` is the stored name of its canonical key."""
    fields = asdict(content)
    return {"key": fields.pop("canonical_key"), **fields}


def page_from_fields(fields: Mapping[str, Any]) -> Page:
    """Read the `to_fields` of a page, after JSON made a list of its headings; raises KeyError and TypeError."""
    others = {name: value for name, value in fields.items() if name != "key"}
    return Page(**{**others, "canonical_key": fields["key"], "headings": tuple(fields["headings"])})
