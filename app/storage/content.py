"""What is stored of a page: its text, or a tombstone. No time, so that an unchanged page is an unchanged object."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from app.errors import ObjectNotFound, StoreError
from app.storage.store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page's readable content. `key` is its canonical URL, `path` includes the query."""

    key: str
    url: str
    domain: str
    path: str
    title: str = ""
    description: str = ""
    headings: tuple[str, ...] = ()
    body: str = ""
    lang: str = ""
    content_type: str = "text/html"
    #: Canonical key that the page itself names, when it lies in scope and differs from `key`; else empty.
    canonical: str = ""
    #: The date that the page gives itself, or its server gives it: `2026-11-21`; else empty.
    modified: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """A page that is no more: `why` is `404`, `410`, `noindex`, `redirect` or `vanished`."""

    key: str
    url: str
    domain: str
    why: str


def read(store: ObjectStore, key: str) -> Page | Tombstone | None:
    """Return what is stored under a content key, or None; raises StoreError for what is no stored page."""
    try:
        return from_json(store.get(key).data)
    except ObjectNotFound:
        return None


def to_json(content: Page | Tombstone) -> bytes:
    """Serialise with sorted keys, so that equal content is equal bytes."""
    fields = asdict(content) | {"kind": "page" if isinstance(content, Page) else "tombstone"}
    return json.dumps(fields, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def from_json(data: bytes) -> Page | Tombstone:
    """Read what `to_json` wrote; raises StoreError for anything else."""
    try:
        fields: dict[str, Any] = json.loads(data)
        kind = fields.pop("kind")
        if kind == "page":
            return Page(**{**fields, "headings": tuple(fields["headings"])})
        return Tombstone(**fields)
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"not a stored page: {error!r}: {data[:80]!r}") from error
