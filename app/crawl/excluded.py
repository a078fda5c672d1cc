"""Excluded URLs: found in the pages of a crawl and never requested. Redis counts them by reason and lists some."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from redis import Redis

from app.crawl.frontier_values import FoundPage, crawl_key, to_entry
from app.crawl_record.reasons import EXCLUDED

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
    """Remembers the excluded URLs that this process has noted: a menu repeats them on each page of a site."""

    def __init__(self) -> None:
        self._noted: set[tuple[str, str]] = set()

    def arguments(self, crawl_id: str, excluded: Iterable[tuple[str, FoundPage]]) -> list[str]:
        """Return the arguments of `complete.lua` for the URLs, each with its reason, that are new to this process."""
        if len(self._noted) > _REMEMBERED:
            self._noted.clear()
        arguments = []
        for reason, link in excluded:
            name = link.name
            if (crawl_id, name) not in self._noted:
                self._noted.add((crawl_id, name))
                arguments += [reason, name, to_entry(link)]
        return arguments


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
