"""What the store holds, under which keys and how large: pages and tombstones, packs and manifests."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Final

from app.errors import ObjectDamaged
from app.storage.page_parts import (
    Block,
    PageLink,
    Term,
    blocks_from_json,
    blocks_to_json,
    bounded_blocks,
    bounded_links,
    bounded_terms,
    headings_from_json,
    links_from_json,
    links_to_json,
    terms_from_json,
)
from app.storage.reading import decoded, get_if_present, parsing
from app.storage.store import ObjectStore, Stat

#: Version of the content of stored pages. The next crawl requests a page of another version again.
CONTENT_VERSION: Final = 1

#: Keys of pages begin with this.
CONTENT_PREFIX: Final = "content/"
_PAGE_SUFFIX: Final = ".json"
#: Keys of the frames of packs begin with this.
FRAMES_PREFIX: Final = "frames/"
#: Only the keys of manifests begin and end with these.
MANIFEST_PREFIX: Final = "packs/"
MANIFEST_SUFFIX: Final = ".json"

# A page's texts are cut when it is extracted, and again when it is packed: others may store pages, too.

#: Characters of a title, a description and a heading. Search results show far fewer of them.
MAX_TITLE: Final = 1_000
MAX_DESCRIPTION: Final = 4_000
MAX_HEADING: Final = 1_000
#: Headings of a page.
MAX_HEADINGS: Final = 500
#: Characters of a page's text. Pages above MAX_BODY_BYTES are not indexed, so only stored pages of others are longer.
MAX_BODY: Final = 20_000_000
#: Characters of a URL, a path or a canonical key. A longer one cannot be cut: the page is left out of packs.
MAX_ADDRESS: Final = 8_000
#: Alternates of a page, which are the page in other languages.
MAX_ALTERNATES: Final = 200
#: Characters of a hash, in hexadecimal digits.
MAX_HASH: Final = 128
#: Characters of a media type (RFC 6838 section 4.2 allows 127 for each part) and of a date.
MAX_CONTENT_TYPE: Final = 255
MAX_DATE: Final = 40

#: Characters of a language tag (RFC 5646 section 4.4.1) and its syntax, without the rules of its subtags.
MAX_LANG: Final = 35
_LANGUAGE_TAG: Final = re.compile(r"[A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,8})*")


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
    #: URLs in scope that the page names as itself in other languages.
    alternates: tuple[str, ...] = ()
    #: Date of the page's own metadata or of its server: `2026-11-21`; else empty.
    modified: str = ""
    #: All text of the page, boilerplate included, in document order. `body` is a part of it, chosen at extraction.
    blocks: tuple[Block, ...] = ()
    #: The links that a crawl follows, in document order.
    links: tuple[PageLink, ...] = ()
    #: What the page defines besides its headings, in document order: terms of definition lists, and anchored names.
    terms: tuple[Term, ...] = ()
    #: Hashes of `body` and `title`, to find copies; empty for an empty text.
    body_hash: str = ""
    title_hash: str = ""
    version: int = CONTENT_VERSION

    @property
    def origin(self) -> str:
        """The scheme and host of the URL."""
        return self.url.removesuffix(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """A page that is gone. `why` is `404`, `410`, `noindex`, `robots`, `soft-404`, `redirect`,
    `blocked` or `vanished`."""

    canonical_key: str
    url: str
    domain: str
    why: str


@lru_cache(maxsize=256)
def page_id(canonical_key: str) -> str:
    """Return a page's id: the UUID v5 of its canonical key. A page in work asks for its own repeatedly."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, canonical_key))


def content_prefix(domain: str) -> str:
    """Return the prefix of the object keys of a domain's pages."""
    return f"{CONTENT_PREFIX}{domain}/"


def content_key(domain: str, page_id: str) -> str:
    """Return the object key of a page."""
    return f"{content_prefix(domain)}{page_id}{_PAGE_SUFFIX}"


def id_in_key(object_key: str) -> str:
    """Return the page id in the object key of a page."""
    return object_key.rpartition("/")[2].removesuffix(_PAGE_SUFFIX)


def list_pages(store: ObjectStore, domain: str) -> Iterator[Stat]:
    """Yield the stored pages and tombstones of a domain in key order."""
    start = len(content_prefix(domain))
    return (stat for stat in store.list(content_prefix(domain)) if _is_page(stat.key[start:]))


def list_versions(store: ObjectStore, domain: str) -> Iterator[tuple[str, str]]:
    """Yield page id and version of what `list_pages` yields, in key order."""
    start = len(content_prefix(domain))
    for key, version in store.list_versions(content_prefix(domain)):
        if _is_page(key[start:]):
            yield key[start : -len(_PAGE_SUFFIX)], version


def _is_page(name: str) -> bool:
    return name.endswith(_PAGE_SUFFIX) and "/" not in name and name.isprintable()


def list_ids(store: ObjectStore, domain: str) -> set[str]:
    """Return the page ids of a domain's stored pages and tombstones."""
    return {page_id for page_id, _ in list_versions(store, domain)}


def frames_prefix(domain: str) -> str:
    """Return what the keys of a domain's frames begin with."""
    return f"{FRAMES_PREFIX}{domain}/"


def frames_key(domain: str, name: str) -> str:
    """Return the object key of the frames that one generation of a domain's pack has added."""
    return f"{frames_prefix(domain)}{name}"


def manifest_key(domain: str) -> str:
    """Return the object key of the manifest of a domain's pack."""
    return f"{MANIFEST_PREFIX}{domain}{MANIFEST_SUFFIX}"


def announcement_key(domain: str) -> str:
    """Return the object key of the checksum of the pack whose `update` was published last."""
    return f"packs/{domain}.announced"


def read_content(store: ObjectStore, object_key: str) -> Page | Tombstone | None:
    """Return the stored page or tombstone, or None for a missing object; raises ObjectDamaged, which names it."""
    stored = get_if_present(store, object_key)
    return decoded(object_key, stored, content_of) if stored else None


def may_be_page(store: ObjectStore, object_key: str) -> bool:
    """Return whether an object is a stored page; a damaged one may have been one."""
    try:
        return isinstance(read_content(store, object_key), Page)
    except ObjectDamaged:
        return True


def to_json(content: Page | Tombstone) -> bytes:
    """Serialise with sorted keys, so that equal content has equal bytes."""
    stored = to_fields(content) | {"kind": "page" if isinstance(content, Page) else "tombstone"}
    # `sort_keys` would sort each block. Their keys are in order already.
    return json.dumps(dict(sorted(stored.items())), ensure_ascii=False, separators=(",", ":")).encode()


def from_json(data: bytes, *, parts: bool = True) -> Page | Tombstone:
    """Read the output of `to_json`, ignoring fields of later releases; raises ObjectDamaged for any other bytes.

    Without `parts`, a page comes in half the time. Its blocks are the headings with an id. Invalid blocks and links are
    left out.
    """
    with parsing("a stored page", data):
        loaded: dict[str, Any] = json.loads(data)
        if loaded["kind"] == "page":
            return page_from_fields(loaded, parts=parts)
        return Tombstone(**{**_fields_of(Tombstone, loaded), "canonical_key": loaded["key"]})


def content_of(key: str, data: bytes) -> Page | Tombstone:
    """Read a stored page or tombstone, under any key; raises ObjectDamaged."""
    del key
    return from_json(data)


def outline_of(key: str, data: bytes) -> Page | Tombstone:
    """Read a stored page or tombstone without most of its parts; see `from_json`. Raises ObjectDamaged."""
    del key
    return from_json(data, parts=False)


def to_fields(content: Page | Tombstone) -> dict[str, Any]:
    """Return the JSON fields of a page or tombstone; `key` is the stored name of its canonical key."""
    named = {field.name: getattr(content, field.name) for field in fields(content)}
    if isinstance(content, Page):
        named["blocks"] = blocks_to_json(content.blocks, content.body)
        named["links"] = links_to_json(content.links, content.origin)
    return {"key": named.pop("canonical_key"), **named}


def page_from_fields(named: Mapping[str, Any], *, parts: bool = True) -> Page:
    """Read the `to_fields` of a page; raises KeyError, TypeError, ValueError and AttributeError for anything else.

    Blocks and links of another version may have another form: such a page comes without them.
    """
    found = {**_fields_of(Page, named), "canonical_key": named["key"], "version": named["version"]}
    found["headings"] = tuple(named["headings"])
    found["alternates"] = tuple(named.get("alternates", ()))
    blocks, links, terms = (found.pop(name, ()) for name in ("blocks", "links", "terms"))
    if found["version"] != CONTENT_VERSION:
        return Page(**found)
    origin, body = found["url"].removesuffix(found["path"]), found.get("body", "")
    if parts:
        found["blocks"] = blocks_from_json(blocks, body)
        found["links"] = links_from_json(links, origin)
        found["terms"] = terms_from_json(terms)
        return Page(**found)
    with suppress(ValueError, TypeError, AttributeError):
        found["links"] = links_from_json(links, origin)
    with suppress(KeyError, TypeError, AttributeError):
        found["blocks"] = headings_from_json(blocks, body)
    return Page(**found)


def _fields_of(kind: type[Page | Tombstone], named: Mapping[str, Any]) -> dict[str, Any]:
    return {name: named[name] for name in _FIELDS[kind] if name in named}


#: To look up the fields of a class takes longer than to fill them.
_FIELDS: Final = {kind: tuple(field.name for field in fields(kind)) for kind in (Page, Tombstone)}


def bounded(page: Page) -> Page:
    """Return the page with each text cut to its limit, and without a language that is no language tag (BCP 47).

    Its addresses are not changed: see `has_long_address`.
    """
    return replace(
        page,
        title=page.title[:MAX_TITLE],
        description=page.description[:MAX_DESCRIPTION],
        headings=tuple(heading[:MAX_HEADING] for heading in page.headings[:MAX_HEADINGS]),
        body=page.body[:MAX_BODY],
        lang=language_tag(page.lang),
        content_type=page.content_type[:MAX_CONTENT_TYPE],
        canonical=page.canonical if len(page.canonical) <= MAX_ADDRESS else "",
        alternates=tuple(url for url in page.alternates if len(url) <= MAX_ADDRESS)[:MAX_ALTERNATES],
        modified=page.modified if len(page.modified) <= MAX_DATE else "",
        blocks=bounded_blocks(page.blocks),
        links=bounded_links(page.links, max_url=MAX_ADDRESS),
        terms=bounded_terms(page.terms),
        body_hash=page.body_hash[:MAX_HASH],
        title_hash=page.title_hash[:MAX_HASH],
    )


def language_tag(lang: str) -> str:
    """Return a `lang` attribute with `-` for `_`, or an empty string if it is no language tag: `en_US` is `en-US`."""
    tag = lang[: MAX_LANG + 1].strip().replace("_", "-")
    return tag if len(tag) <= MAX_LANG and _LANGUAGE_TAG.fullmatch(tag) else ""


def has_long_address(page: Page) -> bool:
    """Return whether the URL, path or canonical key is longer than `MAX_ADDRESS` characters."""
    return max(len(page.url), len(page.path), len(page.canonical_key)) > MAX_ADDRESS
