"""Entries of a crawl record: what became of one URL, as a line of JSON, and what the next crawl takes from it."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any, Final, Literal, get_args

from app.crawl.record.reasons import Reason
from app.errors import StoreError
from app.storage.layout import MAX_ADDRESS, Page, page_id
from app.storage.page_parts import hash_of
from app.storage.reading import parsing

#: Characters of a reason and of its detail; a longer one is cut.
MAX_REASON: Final = 200
MAX_DETAIL: Final = 500
#: Characters of a hash: 64 bits in hexadecimal tell a million texts apart.
MAX_HASH: Final = 16
#: Characters of an ETag and of a Last-Modified field. Real ones have fewer than 100. A longer one is left out: a part
#: of a validator is invalid.
MAX_VALIDATOR: Final = 200
#: Links of an entry, and characters of all of them together: what a crawl follows from one page by default. The links
#: after these are left out.
MAX_LINKS: Final = 5_000
MAX_LINK_CHARACTERS: Final = 1_250_000
#: The same for a page of a crawl, for the list of broken links. Links by which the crawl finds pages come in addition.
#: Without this bound, 20,000 pages with one menu could have 24 GB of links.
FIRST_LINKS: Final = 20
FIRST_LINK_CHARACTERS: Final = 5_000

UrlState = Literal["indexed", "unchanged", "gone", "redirected", "skipped", "failed", "lost", "excluded"]
#: States of a page with stored content.
STORED_STATES: Final = frozenset({"indexed", "unchanged"})
#: The hash in the entry of a sitemap that was read by its crawl, or by an earlier one and could not be read since.
READ: Final = "read"
_STATUS: Final = re.compile(r"[1-5][0-9]{2}")
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_STATES: Final = frozenset(get_args(UrlState))


def is_reason_code(text: str) -> bool:
    """Return whether a text is a code by which totals count: a reason, a state, `waiting` or an HTTP status."""
    return text in {*Reason, *_STATES, "waiting"} or _STATUS.fullmatch(text) is not None


@dataclass(slots=True, kw_only=True)
class UrlEntry:
    """What became of one URL of a crawl.

    `reason` is a reason code (see `reasons`) and `detail` says more of it; both may be empty. `status` is the HTTP
    status or 0, `at` seconds since the epoch. `referrer` is the page id of the first page that linked to it, empty for
    the start page. `etag` and `last_modified` are the response's validators, `hash` identifies title and text. `links`
    are the URLs that it leads to, only where no stored page has them: of noindex pages and redirects. In a crawl, these
    are the first ones, and those by which the crawl found pages: a sweep finds all pages.
    `interval` (seconds) and `due` (seconds since the epoch) say when a crawl of the schedule requests the page again.
    """

    url: str
    page_id: str
    state: UrlState
    at: float
    reason: str = ""
    detail: str = ""
    status: int = 0
    depth: int = 0
    referrer: str = ""
    etag: str = ""
    last_modified: str = ""
    hash: str = ""
    links: tuple[str, ...] = ()
    interval: float = 0.0
    due: float = 0.0

    def to_line(self) -> bytes:
        """Serialise as compact JSON in ASCII without a newline; empty fields are left out, long ones bounded.

        Raises StoreError for a URL of more than `MAX_ADDRESS` characters.
        """
        if len(self.url) > MAX_ADDRESS:
            raise StoreError(f"{self.url[:100]}...: an address of more than {MAX_ADDRESS} characters")
        named: dict[str, Any] = {"url": self.url, "state": self.state, "at": round(self.at, 3)}
        # Most URLs are their own canonical keys, from which the page id follows.
        if self.page_id != page_id(self.url):
            named["page_id"] = self.page_id
        values = {
            "status": self.status,
            "depth": self.depth,
            "reason": self.reason[:MAX_REASON],
            "detail": self.detail[:MAX_DETAIL],
            "referrer": self.referrer,
            "etag": _validator(self.etag),
            "last_modified": _validator(self.last_modified),
            "hash": self.hash[:MAX_HASH],
        }
        named |= {name: value for name, value in values.items() if value}
        if self.due:
            named |= {"interval": round(self.interval, 3), "due": round(self.due, 3)}
        if self.links:
            named["links"] = first_links(self.links, MAX_LINKS, MAX_LINK_CHARACTERS)
        return _ENCODER.encode(named).encode()

    @property
    def code(self) -> str:
        """The reason code, or the state of an entry without one: what totals are counted by."""
        return self.reason or self.state

    @property
    def explanation(self) -> str:
        """State, reason and detail in words: `skipped: robots (line 3: Disallow: /x)`."""
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.state}{reason}{f' ({self.detail})' if self.detail else ''}"

    @classmethod
    def from_line(cls, line: bytes) -> UrlEntry:
        """Read the output of `to_line`, ignoring fields of later releases; raises ObjectDamaged for any other bytes."""
        with parsing("an entry of a crawl record", line):
            named = json.loads(line.decode())
            values = {name: named[name] for name in _NAMES if name in named}
            values["page_id"] = values.get("page_id") or page_id(values["url"])
            values["links"] = tuple(values.get("links", ()))
            # Many entries share these texts: interned, they take memory once.
            values |= {name: sys.intern(values.get(name, "")) for name in ("state", "reason", "referrer")}
            entry = cls(**values)
            # `parsing` takes these errors for damage.
            if entry.state not in _STATES:
                raise ValueError(f"state {entry.state!r:.80}")
            texts = (entry.url, entry.page_id, entry.detail, entry.hash, entry.etag, entry.last_modified, *entry.links)
            are_texts = all(type(text) is str for text in texts)
            if not are_texts or type(entry.status) is not int or type(entry.depth) is not int:
                raise TypeError("a field is not of its type")
            if not all(map(math.isfinite, (entry.at, entry.interval, entry.due))):
                raise ValueError("`at`, `interval` or `due` is no time")
        return entry


_NAMES: Final = tuple(each.name for each in fields(UrlEntry))


def _validator(text: str) -> str:
    return text if len(text) <= MAX_VALIDATOR else ""


def content_hash(page: Page) -> str:
    """Return the hash of a page's title and text; empty for a page without text."""
    return hash_of(f"{page.title_hash} {page.body_hash}")[:MAX_HASH] if page.body_hash else ""


def first_links(
    links: Sequence[str], number: int = FIRST_LINKS, characters: int = FIRST_LINK_CHARACTERS
) -> tuple[str, ...]:
    """Return the first of the links, at most `number` of them with `characters` together, but at least one."""
    lengths = accumulate(map(len, links[:number]))
    return tuple(links[: max(1, sum(1 for length in lengths if length <= characters))])


@dataclass(frozen=True, slots=True)
class Former:
    """A page as the former crawl found it. It is the one that is stored if the stored page has this `hash`.

    `at` is the time of its last request and `due` that of the next one, in seconds since the epoch. `interval` is in
    seconds. They are 0 for a site without `max_page_interval`, and `due` for a crawl that the schedule did not start.
    Of a page that is not stored, only the `links` are known by which the crawl found pages.
    """

    etag: str
    last_modified: str
    hash: str
    interval: float = 0.0
    at: float = 0.0
    due: float = 0.0
    links: tuple[str, ...] = ()

    @property
    def headers(self) -> dict[str, str]:
        """The header fields of a conditional request (RFC 9110 section 13.1); empty without a validator."""
        named = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        return {name: value for name, value in named.items() if value}

    def to_text(self) -> str:
        """Serialise for Redis."""
        values: list[Any] = [self.etag, self.last_modified, self.hash]
        # The script `enter.lua` reads the last one.
        times = [round(self.interval, 3), round(self.at, 3), round(self.due, 3)] if self.at else []
        links = [self.links] if self.links else []
        return json.dumps(values + times + links, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Former | None:
        """Read the output of `to_text`; None for an empty text."""
        if not text:
            return None
        values = json.loads(text)
        links = values.pop() if isinstance(values[-1], list) else ()
        return replace(cls(*values), links=tuple(links))

    @classmethod
    def of(cls, entry: UrlEntry, *, longest: float | None = None, scheduled: bool = False) -> Former:
        """Return what the entry of a page's last request says.

        With a `longest` interval, it has the page's interval; with `scheduled`, too, the time at which it is due.
        """
        if not entry.hash:
            return cls("", "", "", links=entry.links)
        if longest is None:
            return cls(entry.etag, entry.last_modified, entry.hash)
        requested = entry.due - entry.interval if entry.due else entry.at
        due = min(entry.due, requested + longest) if scheduled else 0.0
        return cls(entry.etag, entry.last_modified, entry.hash, entry.interval, requested, due)
