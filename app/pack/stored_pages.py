"""A domain's stored pages: list them, read them in order, and replace vanished ones by tombstones."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from app.errors import ObjectDamaged, PreconditionFailed
from app.storage.damage import decoded_if_intact
from app.storage.layout import (
    MAX_ADDRESS,
    Page,
    Tombstone,
    bounded,
    content_key,
    from_json,
    has_long_address,
    id_in_key,
    page_id,
    to_json,
)
from app.storage.reading import read_objects
from app.storage.store import ObjectStore, Stat
from app.storage.updating import delete_unchanged

log = logging.getLogger(__name__)

#: Stores may round the time of a write down by this much: S3 reports whole seconds.
_TIME_RESOLUTION: Final = timedelta(seconds=1)

#: Seconds between checks that its pack is still the present one.
VALIDITY: Final = 1.0


@dataclass(frozen=True, slots=True)
class StoredContent:
    """A page or tombstone as it was read, with the ETag of the bytes that were read."""

    page_id: str
    etag: str
    content: Page | Tombstone


def read_pages(store: ObjectStore, keys: Iterable[str]) -> Iterator[StoredContent]:
    """Yield pages and tombstones in the order given, holding few of them in memory at a time.

    Deleted and damaged objects are left out.
    """
    for key, stored in read_objects(store, keys):
        if stored is None:
            continue
        content = decoded_if_intact(store, key, stored, _content_of)
        if content is not None:
            yield StoredContent(id_in_key(key), stored.etag, content)


def _content_of(key: str, data: bytes) -> Page | Tombstone:
    """Return a page or tombstone, without blocks that are invalid and with its texts cut to their limits.

    Raises ObjectDamaged for what no pack can hold.
    """
    try:
        content = from_json(data)
    except ObjectDamaged:
        content = from_json(data, parts=False)
    identifier = id_in_key(key)
    try:
        is_own = page_id(str(content.canonical_key)) == identifier
    except UnicodeEncodeError as error:
        raise ObjectDamaged(str(error)) from error
    if not is_own:
        raise ObjectDamaged(f"stored under {identifier}, which is not the page id of {content.canonical_key!r:.200}")
    if isinstance(content, Tombstone):
        return content
    texts = (content.url, content.path, content.title, content.description, content.body, content.lang)
    kinds = (content.content_type, content.canonical, content.modified, content.body_hash, content.title_hash)
    for text in (*texts, *kinds, *content.headings):
        if not isinstance(text, str):
            raise ObjectDamaged(f"{content.canonical_key!r:.200}: {text!r:.200} is not a string")
    if has_long_address(content):
        raise ObjectDamaged(f"{content.url[:100]}...: an address of more than {MAX_ADDRESS} characters")
    return bounded(content)


def find_vanished(
    store: ObjectStore, unmet: Iterable[Stat], *, began: datetime
) -> tuple[list[tuple[Stat, Tombstone]], list[StoredContent]]:
    """Read what a complete crawl did not meet. Return the pages to replace, and the present tombstones.

    Each page comes as it was listed, with the tombstone to write in its place.
    What was written since the crawl began is left out: it has not vanished.
    """
    older = {}
    for stat in unmet:
        latest = stat.modified if stat.modified.microsecond else stat.modified + _TIME_RESOLUTION
        if latest < began:
            older[id_in_key(stat.key)] = stat
    vanished, tombstones = [], []
    for stored in read_pages(store, (stat.key for stat in older.values())):
        if isinstance(stored.content, Tombstone):
            tombstones.append(stored)
        else:
            page = stored.content
            tombstone = Tombstone(canonical_key=page.canonical_key, url=page.url, domain=page.domain, why="vanished")
            vanished.append((older[stored.page_id], tombstone))
    return vanished, tombstones


def write_tombstones(
    store: ObjectStore,
    vanished: Iterable[tuple[Stat, Tombstone]],
    *,
    still_valid: Callable[[], bool],
    met_since: Callable[[], Collection[str]],
) -> int:
    """Replace the vanished pages and return how many. A page that was written meanwhile is kept.

    `still_valid` returns whether this packer's pack is the present one. A packer that was stopped for long may have
    lost its lease, and its pages may be back. `met_since` returns the ids of pages that were fetched after the crawl's
    record was read. An unchanged page has the same ETag as before. Both are called once a second.
    """
    written, checked = 0, -VALIDITY
    met: Collection[str] = ()
    for stat, tombstone in vanished:
        if time.monotonic() - checked >= VALIDITY:
            if not still_valid():
                log.warning("%s: another packer replaced the pack; its vanished pages stay", tombstone.domain)
                break
            met, checked = met_since(), time.monotonic()
        if page_id(tombstone.canonical_key) in met:
            continue
        with suppress(PreconditionFailed):
            store.put(stat.key, to_json(tombstone), if_match=stat.etag)
            written += 1
    return written


def delete_tombstones(store: ObjectStore, domain: str, etags: Mapping[str, str]) -> None:
    """Delete tombstones by page id, unless they were replaced since they were read with these ETags: a page came back.

    A pack that was built without their pages is published. So nothing needs them any more.
    """
    delete_unchanged(store, {content_key(domain, page_id): etag for page_id, etag in etags.items()})
