"""The pages of a domain's former crawl: their validators and hashes, as Redis keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from redis.typing import EncodableT, FieldT

from app.crawl.frontier.values import SITEMAP, Former, fingerprint, frontier_key
from app.crawl.record.entries import UrlEntry
from app.crawl.record.reasons import Reason
from app.crawl.urls import canonical_key

#: Pages that one command gives to Redis.
BATCH = 1_000
#: The hash in the entry of a sitemap that was read by its crawl, or by an earlier one and could not be read since.
READ = "read"
_STORED = frozenset({"indexed", "unchanged"})


def batches_of(
    entries: Iterable[UrlEntry], *, longest: float | None = None, scheduled: bool = False
) -> Iterator[dict[FieldT, EncodableT]]:
    """Yield the stored pages and the read sitemaps of a crawl record as texts by their names, some at a time.

    With a `longest` interval, they have their intervals; with `scheduled`, too, the times at which they are due.
    """
    stored = (entry for entry in entries if entry.hash and (entry.state in _STORED or entry.reason == Reason.SITEMAP))
    while batch := list(islice(stored, BATCH)):
        yield {_name(each): _former(each, longest=longest, scheduled=scheduled).to_text() for each in batch}


def _name(entry: UrlEntry) -> str:
    role = SITEMAP if entry.reason == Reason.SITEMAP else ""
    return fingerprint(frontier_key(canonical_key(entry.url), role))


def _former(entry: UrlEntry, *, longest: float | None, scheduled: bool) -> Former:
    if longest is None:
        return Former(entry.etag, entry.last_modified, entry.hash)
    requested = entry.due - entry.interval if entry.due else entry.at
    due = min(entry.due, requested + longest) if scheduled else 0.0
    return Former(entry.etag, entry.last_modified, entry.hash, entry.interval, requested, due)
