"""Stored pages that a crawl left out for identical texts: whether they vanished is unknown, so they are kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from itertools import chain
from typing import Final

from app.crawl.record.entries import UrlEntry
from app.crawl.record.reasons import Reason
from app.crawl.traps import pattern_of
from app.crawl.urls import canonical_key
from app.storage.damage import read_intact
from app.storage.layout import Page, content_key, outline_of, page_id
from app.storage.store import ObjectStore

#: Canonical keys of links that are kept: most pages repeat the same ones.
_CACHED_KEYS: Final = 50_000


def find_left_out(
    store: ObjectStore, domain: str, stored: Iterable[str], entries: Mapping[str, UrlEntry], closed: Collection[str]
) -> set[str]:
    """Return ids of stored pages that a crawl left out, and of those that it did not meet and only they lead to.

    `stored` are the ids of the domain's stored content, `entries` has what the crawl met, by page id. `closed` are the
    directory patterns that identical texts closed.
    """
    spent = {entry.page_id for entry in entries.values() if entry.reason == Reason.IDENTICAL_TEXTS}
    unmet = {own_id for own_id in stored if own_id not in entries or own_id in spent}
    left_out, linked = set(), {}
    id_of = lru_cache(_CACHED_KEYS)(lambda url: page_id(canonical_key(url)))
    # Tombstones and damaged objects lead nowhere.
    for _, page in read_intact(store, (content_key(domain, each) for each in sorted(unmet)), outline_of):
        if not isinstance(page, Page):
            continue
        own_id = page_id(page.canonical_key)
        linked[own_id] = {id_of(link.url) for link in page.links} & unmet
        if own_id in spent or pattern_of(page.canonical_key) in closed:
            left_out.add(own_id)
    found, following = set(left_out), left_out
    while following:
        following = set(chain.from_iterable(linked.get(own_id, ()) for own_id in following)) - found
        found |= following
    return found & linked.keys()
