"""Excluded URLs: found in the pages of a crawl and never requested. Redis counts them by reason and lists some."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from redis import Redis

from app.crawl.frontier.values import FoundPage, crawl_key
from app.crawl.record.reasons import EXCLUDED

#: URLs that are listed of each reason; see exclude.lua.
LISTED = 500
#: URLs that a process remembers to have noted.
_REMEMBERED = 50_000


@dataclass(frozen=True, slots=True)
class ExcludedUrls:
    """The excluded URLs of a crawl: their numbers by reason, and the first `LISTED` of each reason.

    A number above `LISTED` is an estimate within 1 %.
    """

    counts: Mapping[str, int]
    listed: tuple[tuple[str, FoundPage], ...]


class ExcludedNotes:
    """Remembers the excluded URLs that this process has noted: a menu repeats them on each page of a site.

    With each new connection to Redis they are forgotten, as in `CrawlCache`.
    """

    def __init__(self, connections: Callable[[], int]) -> None:
        """Begin without any; `connections` returns the number of connections that were made to Redis."""
        self._connections = connections
        self._connections_before = connections()
        self._noted: set[tuple[str, str]] = set()

    def new(self, crawl_id: str, excluded: Iterable[tuple[str, FoundPage]]) -> list[tuple[str, FoundPage]]:
        """Return the URLs, each with its reason, that are new to this process."""
        if len(self._noted) > _REMEMBERED or self._connections_before != self._connections():
            self._connections_before = self._connections()
            self._noted.clear()
        first = {link.name: (reason, link) for reason, link in reversed(list(excluded))}
        return [each for name, each in reversed(first.items()) if (crawl_id, name) not in self._noted]

    def add(self, crawl_id: str, excluded: Sequence[tuple[str, FoundPage]]) -> None:
        """Note that Redis has these URLs."""
        self._noted.update((crawl_id, link.name) for _, link in excluded)


def excluded_urls(redis: Redis, crawl_id: str) -> ExcludedUrls:
    """Return the excluded URLs of a crawl, without those that are pages of it by another link."""
    key = crawl_key(crawl_id)
    pipe = redis.pipeline(transaction=False)
    pipe.hgetall(f"{key}:excluded")
    for code in EXCLUDED:
        pipe.pfcount(f"{key}:excluded:{code}")
    entries, *counted = pipe.execute()
    names = list(entries)
    states = redis.hmget(f"{key}:pages", names) if names else []
    listed = []
    for name, state in zip(names, states, strict=True):
        if state is None:
            reason, bracket, entry = str(entries[name]).partition("[")
            url, depth, referrer, redirects, role = json.loads(bracket + entry)[:5]
            listed.append((reason, FoundPage(url, "", depth, referrer, redirects, role)))
    exact = Counter(reason for reason, _ in listed)
    counts = {
        str(code): number if number > LISTED else exact[code] for code, number in zip(EXCLUDED, counted, strict=True)
    }
    return ExcludedUrls({reason: number for reason, number in counts.items() if number}, tuple(listed))
