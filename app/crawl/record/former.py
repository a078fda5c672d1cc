"""A page as the former crawl found it: what the next request of it is compared with, and when it is due."""

from __future__ import annotations

import json
from dataclasses import dataclass

from app.crawl.record.entries import UrlEntry

#: The hash in the entry of a sitemap that was read by its crawl, or by an earlier one and could not be read since.
READ = "read"


@dataclass(frozen=True, slots=True)
class Former:
    """A page as the former crawl found it. It is the one that is stored if the stored page has this `hash`.

    `at` is the time of its last request and `due` that of the next one, in seconds since the epoch. `interval` is in
    seconds. They are 0 for a site without `max_page_interval`, and `due` for a crawl that the schedule did not start.
    """

    etag: str
    last_modified: str
    hash: str
    interval: float = 0.0
    at: float = 0.0
    due: float = 0.0

    @property
    def headers(self) -> dict[str, str]:
        """The header fields of a conditional request (RFC 9110 section 13.1); empty without a validator."""
        named = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        return {name: value for name, value in named.items() if value}

    def to_text(self) -> str:
        """Serialise for Redis."""
        values: list[str | float] = [self.etag, self.last_modified, self.hash]
        # The script `enter.lua` reads the last one.
        times = [round(self.interval, 3), round(self.at, 3), round(self.due, 3)] if self.at else []
        return json.dumps(values + times, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Former | None:
        """Read the output of `to_text`; None for an empty text."""
        return cls(*json.loads(text)) if text else None

    @classmethod
    def of(cls, entry: UrlEntry, *, longest: float | None = None, scheduled: bool = False) -> Former:
        """Return what the entry of a page's last request says.

        With a `longest` interval, it has the page's interval; with `scheduled`, too, the time at which it is due.
        """
        if longest is None:
            return cls(entry.etag, entry.last_modified, entry.hash)
        requested = entry.due - entry.interval if entry.due else entry.at
        due = min(entry.due, requested + longest) if scheduled else 0.0
        return cls(entry.etag, entry.last_modified, entry.hash, entry.interval, requested, due)
