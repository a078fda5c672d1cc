"""The pages of a domain's former crawl: their validators and hashes, as Redis keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from redis.typing import EncodableT, FieldT

from app.crawl.frontier_values import Former, fingerprint
from app.crawl.urls import canonical_key
from app.crawl_record.entries import UrlEntry

#: Pages that one command gives to Redis.
BATCH = 1_000
_STORED = frozenset({"indexed", "unchanged"})


def batches_of(entries: Iterable[UrlEntry]) -> Iterator[dict[FieldT, EncodableT]]:
    """Yield the stored pages of a crawl record as texts by the names of their pages, some at a time."""
    stored = (entry for entry in entries if entry.state in _STORED and entry.hash)
    while batch := list(islice(stored, BATCH)):
        yield {
            fingerprint(canonical_key(each.url)): Former(each.etag, each.last_modified, each.hash).to_text()
            for each in batch
        }
