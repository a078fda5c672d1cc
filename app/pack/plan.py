"""Decide what a `pack_full` message builds: the rules, as a function of what is recorded of the crawl."""

from __future__ import annotations

import logging
from collections.abc import Collection, Container
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from app.errors import PackRefused

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedCrawl:
    """What the frontier and the store record of a crawl that has no open messages.

    `page_ids` are the pages that belong to it. `unfollowed_page_ids` are pages that are stored, or led to others in an
    earlier crawl, and whose links were not followed.
    `left_out_page_ids` are stored pages that a budget against traps left out, and those that only they lead to.
    `packed_crawl_began` is when the crawl of the present pack began, None if there is no such pack or crawl.
    """

    id: str
    start_url: str
    began: datetime
    start_page_failed: bool
    reached_limit: bool
    page_ids: Container[str]
    unfollowed_page_ids: Collection[str]
    left_out_page_ids: Collection[str] = ()
    packed_crawl_began: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FullPackPlan:
    """A pack of the pages with these ids and of those that were left out, or of all stored pages (None).

    With `began`, when the crawl began, stored pages that are not among these ids and were not written since have
    vanished. Without it, none has.
    """

    crawl_id: str = ""
    page_ids: Container[str] | None = None
    left_out_page_ids: Collection[str] = ()
    began: datetime | None = None

    def has(self, page_id: str) -> bool:
        """Return whether a stored page belongs into the pack."""
        return self.page_ids is None or page_id in self.page_ids or page_id in self.left_out_page_ids


ALL_STORED_PAGES: Final = FullPackPlan()


def plan_full_pack(domain: str, crawl: FinishedCrawl | None, *, force: bool) -> FullPackPlan | None:
    """Return the pack to build, or None to bring the present pack up to date instead. `crawl` None is an unknown crawl.

    Rules, in this order; `force` skips the first two:

    1. A crawl whose start page failed is refused: raises PackRefused.
    2. A crawl that began before the packed one only updates the pack: a retry or replay must not restore old pages.
    3. Without a crawl, the pack holds every stored page.
    4. A partial crawl removes nothing, so the pack also holds every stored page. A crawl is partial if it reached a
       limit, or if the known links of a page could not be followed.
    5. A complete crawl decides: the pack holds its pages and those that a budget left out. Other stored pages that it
       did not meet have vanished.
    """
    if crawl is None:
        return ALL_STORED_PAGES
    if crawl.start_page_failed and not force:
        raise PackRefused(
            f"{domain}: the start page {crawl.start_url} failed; the pack stays as it is (force overrules)"
        )
    if crawl.packed_crawl_began is not None and crawl.packed_crawl_began > crawl.began and not force:
        log.warning("%s: the pack is of a later crawl than %s; updating it instead of replacing it", domain, crawl.id)
        return None
    if crawl.reached_limit or crawl.unfollowed_page_ids:
        reason = (
            "it reached a limit" if crawl.reached_limit else f"{len(crawl.unfollowed_page_ids)} pages were not followed"
        )
        log.warning("%s: crawl %s is partial (%s): pages that it did not meet are kept", domain, crawl.id, reason)
        return FullPackPlan(crawl_id=crawl.id)
    return FullPackPlan(
        crawl_id=crawl.id, page_ids=crawl.page_ids, left_out_page_ids=crawl.left_out_page_ids, began=crawl.began
    )
