"""What a process caches of crawls: their seen pages, and publications to note with the next completion."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from app.crawl.frontier.values import MAX_ERROR, Completion, to_backlog_json

#: Crawls of which a process caches something.
CRAWLS = 1_000
#: Seen pages that a process caches of all crawls together, about 100 bytes each.
PAGES = 500_000
#: Begins the names by which a process caches excluded pages, so that a link that is followed still counts as new.
_EXCLUDED = "excluded "


@dataclass(slots=True)
class _Cached:
    """What is cached of one crawl. `born` is of the crawl that has seen the pages: one that Redis lost has another."""

    born: str = ""
    seen: set[str] = field(default_factory=set)
    confirmed: list[str] = field(default_factory=list)


class _FoundLinks:
    """The links and the excluded links of a completion by the names by which a process caches them."""

    def __init__(self, page: Completion) -> None:
        self._page = page
        self._links = {link.name: link for link in page.links}
        # A menu repeats excluded URLs on each page of a site. Of two reasons, the first one counts.
        self._excluded = {f"{_EXCLUDED}{link.name}": (reason, link) for reason, link in reversed(page.excluded)}

    def names(self) -> Iterator[str]:
        """Yield the names of the links, then of the excluded ones."""
        return chain(self._links, self._excluded)

    def taken(self, unseen: set[str]) -> tuple[list[str], list[str], list[object]]:
        """Take the unseen names of the page; return those of links and excluded links, and the page for the script."""
        fresh = [each for each in self._links if each in unseen]
        noted = [each for each in reversed(self._excluded) if each in unseen]
        unseen.difference_update(fresh, noted)
        page = self._page
        fields: list[object] = [page.name, page.state, int(page.indexed), page.error[:MAX_ERROR] or page.line]
        fields += [page.text, len(page.key), len(fresh), len(noted)]
        for each in fresh:
            fields += (each, to_backlog_json(self._links[each]))
        for reason, link in map(self._excluded.__getitem__, noted):
            fields += (reason, link.name, to_backlog_json(link))
        return fresh, noted, fields


class UnseenLinks(NamedTuple):
    """Links of pages that a process has not cached as seen, and the `born` of the crawl that has seen the others.

    `followed` are the names of those of each page, `excluded` the names of all excluded links. `arguments` are the
    pages for the script `complete`.
    """

    born: str
    followed: Sequence[Sequence[str]]
    excluded: Sequence[str]
    arguments: Sequence[object]


class CrawlCache:
    """Caches of the crawls that were used last; threads of a process may share it.

    A seen page stays seen, unless Redis lost its last writes: with each new connection to it, the pages are forgotten.
    Whatever is forgotten costs a look at Redis, or a note of unconfirmed pages that stays there until the crawl's keys
    expire.
    """

    def __init__(self, connections: Callable[[], int] = int, *, crawls: int = CRAWLS, pages: int = PAGES) -> None:
        """Begin without any; `connections` returns the number of connections that were made to Redis."""
        self._connections = connections
        self._connections_before = connections()
        self._limit = crawls
        self._pages_left = pages
        self._crawls: OrderedDict[str, _Cached] = OrderedDict()
        self._lock = threading.Lock()

    def unseen(self, crawl_id: str, names: Iterable[str]) -> tuple[set[str], str]:
        """Return those of the names of pages that are not cached as seen, and the `born` of the crawl with the others.

        It is empty without any page that was seen.
        """
        with self._lock:
            if self._connections_before != (connections := self._connections()):
                self._connections_before = connections
                for cached in self._crawls.values():
                    self._forget_pages(cached)
            cached = self._of(crawl_id)
            return set(names) - cached.seen, cached.born

    def unseen_links(self, crawl_id: str, completions: Iterable[Completion]) -> UnseenLinks:
        """Return the links of pages that are not cached as seen, each for the first page that has it."""
        pages = [_FoundLinks(each) for each in completions]
        unseen, born = self.unseen(crawl_id, chain.from_iterable(map(_FoundLinks.names, pages)))
        followed, excluded, arguments = zip(*(each.taken(unseen) for each in pages), strict=True)
        return UnseenLinks(born, followed, list(chain.from_iterable(excluded)), list(chain.from_iterable(arguments)))

    def add_seen(self, crawl_id: str, names: Iterable[str], *, born: str) -> None:
        """Note that the crawl with this `born` has seen pages of these names; forget those of one with another."""
        with self._lock:
            cached = self._of(crawl_id)
            if cached.born != born:
                self._forget_pages(cached)
                cached.born = born
            before = len(cached.seen)
            cached.seen.update(names)
            self._pages_left -= len(cached.seen) - before
            for oldest in self._crawls.values():
                if self._pages_left >= 0:
                    break
                self._forget_pages(oldest)

    def add_confirmed(self, crawl_id: str, name: str) -> None:
        """Note that what the message of this name admitted is published."""
        with self._lock:
            self._of(crawl_id).confirmed.append(name)

    def take_confirmed(self, crawl_id: str) -> list[str]:
        """Return the names given to `add_confirmed` since the last call."""
        with self._lock:
            cached = self._of(crawl_id)
            names, cached.confirmed = cached.confirmed, []
            return names

    def __len__(self) -> int:
        return len(self._crawls)

    def _of(self, crawl_id: str) -> _Cached:
        cached = self._crawls.setdefault(crawl_id, _Cached())
        self._crawls.move_to_end(crawl_id)
        if len(self._crawls) > self._limit:
            self._forget_pages(self._crawls.popitem(last=False)[1])
        return cached

    def _forget_pages(self, cached: _Cached) -> None:
        self._pages_left += len(cached.seen)
        cached.seen.clear()
