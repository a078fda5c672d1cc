"""Moves: whether a crawl may go on at the domain to which its start page redirects."""

from __future__ import annotations

from itertools import chain

from app.crawl.frontier.frontier import Frontier
from app.crawl.record.crawls import list_crawls
from app.crawl.record.removed_sites import removed_key
from app.sites.stored import site_key
from app.storage.layout import content_prefix, manifest_key
from app.storage.store import ObjectStore
from app.timers.stored import timer_key
from app.timers.timers import Timers


def may_move(source: str, target: str, *, store: ObjectStore, frontier: Frontier, timers: Timers) -> bool:
    """Return whether a crawl may move from one domain to another: a page must not replace what others indexed.

    It may to an unknown domain, and to one whose crawls all began by moves of `source`. It may also add or remove
    `www.`. It never may to a domain that has settings, a client's timer, or was removed: an operator decided about it.
    """
    if source == target:
        return True
    if _has_any(store, site_key(target), timer_key(target), removed_key(target)):
        return False
    if source.removeprefix("www.") == target.removeprefix("www."):
        return True
    crawls = (*list_crawls(store, target), frontier.latest(target))
    if origins := {crawl.moved_from for crawl in crawls if crawl}:
        return origins == {source}
    return timers.running(target) is None and not _has_any(store, manifest_key(target), content_prefix(target))


def _has_any(store: ObjectStore, *prefixes: str) -> bool:
    return next(chain.from_iterable(map(store.list, prefixes)), None) is not None
