"""A domain's stored pages: their listing, and their content read in order."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from app.errors import ObjectNotFound, StoreError
from app.storage.layout import Page, Tombstone, content_prefix, from_json, page_id
from app.storage.store import ObjectStore, Stat, StoredObject

log = logging.getLogger(__name__)

SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Content:
    """What an object held when it was read. `object` is the page's identity, `etag` that of the bytes read."""

    object: str
    etag: str
    content: Page | Tombstone


def list_content(store: ObjectStore, domain: str) -> dict[str, Stat]:
    """Return every stored page and tombstone of a domain by its identity, in key order."""
    prefix = content_prefix(domain)
    named = ((stat.key.removeprefix(prefix), stat) for stat in store.list(prefix))
    return {name.removesuffix(SUFFIX): stat for name, stat in named if name.endswith(SUFFIX) and "/" not in name}


def read_content(store: ObjectStore, stats: Iterable[Stat]) -> Iterator[Content]:
    """Yield the objects in the order given, few of them in memory at a time.

    Left out are those that are gone by now, and, with a warning, those that are no stored page: one of them must not
    keep a whole domain from being packed.
    """
    for stat, stored in _read(store, stats):
        if stored is None:
            continue
        identity = stat.key.rpartition("/")[2].removesuffix(SUFFIX)
        try:
            content = from_json(stored.data)
            _require_sound(identity, content)
        except (StoreError, UnicodeEncodeError) as error:
            log.warning("%s: left out: %s", stat.key, error)
            continue
        yield Content(identity, stored.etag, content)


def _require_sound(identity: str, content: Page | Tombstone) -> None:
    if page_id(str(content.canonical_key)) != identity:
        raise StoreError(f"stored under {identity}, which is not the identity of {content.canonical_key!r}")
    if isinstance(content, Page):
        texts = (content.url, content.path, content.title, content.description, content.body, content.lang)
        for text in (*texts, content.content_type, content.canonical, content.modified, *content.headings):
            if not isinstance(text, str):
                raise StoreError(f"{content.canonical_key}: {text!r} is not a text")


def _read(store: ObjectStore, stats: Iterable[Stat]) -> Iterator[tuple[Stat, StoredObject | None]]:
    # A store that is far away says how many reads are worth having under way; a folder is fastest one by one.
    readers = getattr(store, "readers", 1)
    if readers == 1:
        for stat in stats:
            yield stat, _get(store, stat.key)
        return
    with ThreadPoolExecutor(readers) as pool:
        yield from _read_ahead(pool, store, iter(stats), 2 * readers)


def _read_ahead(
    pool: ThreadPoolExecutor, store: ObjectStore, stats: Iterator[Stat], ahead: int
) -> Iterator[tuple[Stat, StoredObject | None]]:
    window: deque[tuple[Stat, Future[StoredObject | None]]] = deque()
    try:
        for stat in islice(stats, ahead):
            window.append((stat, pool.submit(_get, store, stat.key)))
        while window:
            stat, future = window.popleft()
            yield stat, future.result()
            for following in islice(stats, 1):
                window.append((following, pool.submit(_get, store, following.key)))
    finally:
        for _, future in window:
            future.cancel()


def _get(store: ObjectStore, key: str) -> StoredObject | None:
    try:
        return store.get(key)
    except ObjectNotFound:
        return None
