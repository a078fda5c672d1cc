"""The values that the frontier takes and returns, and the names of crawls, pages and hosts in Redis."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Literal, NamedTuple

from app.crawl.record.crawls import CrawlState
from app.crawl.record.entries import Former, UrlEntry
from app.crawl.record.keys import plain_id
from app.crawl.record.reasons import Reason
from app.crawl.traps import charges
from app.crawl.urls import SITEMAP, CrawlUrl, canonical_key, frontier_key
from app.redis_state.client import PREFIX
from app.storage.layout import page_id

ACTIVE_CRAWLS = f"{PREFIX}crawls:active"
#: The crawls that were restored from their records and wait for a sweep.
RESTORED_CRAWLS = f"{PREFIX}crawls:restored"
#: The crawl that began last, for a few seconds; see admit.lua.
NEW_CRAWL = f"{ACTIVE_CRAWLS}:new"
HOST_PREFIX = f"{PREFIX}host:"

#: Seconds after which a request that has not ended counts as lost. Then another message of its page may be fetched.
LEASE = 150

#: `page` is the one message of a page of a recorded crawl; a client's crawl has an `index` and a `crawl` for each page.
MessageKind = Literal["page", "index", "crawl"]
_PREFIX_OF_KIND: dict[MessageKind, str] = {"page": "", "index": "i", "crawl": "c"}
_KIND_OF_PREFIX: dict[str, MessageKind] = {"i": "index", "c": "crawl"}
#: Characters of a page's name.
NAME_LENGTH = 16

#: Characters of an error that are kept of a page's last failure.
MAX_ERROR = 300

#: Excluded URLs that are listed of each reason; see exclude.lua.
LISTED = 500

#: Compact JSON. `json.dumps` creates a new encoder for each value if separators are given.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

#: The states of a page or message in Redis, and their names.
PAGE_STATES = {"w": "waiting", "o": "open", "d": "done", "x": "dead", "l": "seen"}


@dataclass(frozen=True, slots=True)
class Crawl:
    """One crawl of a domain. `started` is when its first message was handled."""

    id: str
    domain: str
    start_url: str
    started: datetime
    #: How often the start page redirected to another host, and the crawl with it.
    moves: int = 0
    #: Whether it began with `index+crawl`: then its links are `page` messages, and it has a record in the store.
    recorded: bool = False
    #: The domain whose start page redirected the crawl here, empty for one that a message began.
    moved_from: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts of a domain's latest crawl. `seen`, `waiting` and `indexed` count pages; `done` and `dead` messages.

    `open` is the number of open messages over all crawls of the domain; `idle` is seconds since one was completed.
    `waiting` is the backlog, and `waiting_elsewhere` those of the domain's other crawls.
    """

    crawl: Crawl | None
    seen: int
    open: int
    waiting: int
    done: int
    dead: int
    indexed: int
    idle: float
    state: CrawlState = "running"
    #: Seconds from a response to the next request, as of the page that was completed last.
    delay: float = 0.0
    waiting_elsewhere: int = 0


@dataclass(frozen=True, slots=True)
class FrontierFigures:
    """What Redis has of one crawl at one moment.

    `counts` are `seen` and `indexed` pages, `done` and `dead` messages; `cut` is not 0 if the crawl is cut. `left` is
    the number of open messages and waiting pages. A restored crawl waits for a sweep, which may find more of its pages.
    `closed` are the directory patterns that identical texts closed; see `traps.pattern_of`.
    """

    counts: Mapping[str, int]
    left: int
    is_restored: bool
    closed: frozenset[str]

    @property
    def is_cut(self) -> bool:
        """Whether the crawl did not follow all links: it reached its most pages or its depth, or was cancelled."""
        return bool(self.counts["cut"])


class FrontierUrl(NamedTuple):
    """A URL in the frontier of one crawl, found at a depth; `referrer` is the id of the page that led to it, or empty.

    `redirects` is the number of redirects in a row that led to it. `role` is `sitemap`,
    `soft-404-check` or, for a page, empty. `kind` is that of its message.
    """

    url: str
    canonical_key: str
    depth: int
    referrer: str = ""
    redirects: int = 0
    role: str = ""
    kind: MessageKind = "page"

    @property
    def key(self) -> str:
        """The frontier's name of the page, by its role."""
        return frontier_key(self.canonical_key, self.role)

    @property
    def name(self) -> str:
        """The name of its message in Redis."""
        return message_name(self.kind, self.key)


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """A page that a crawl has fetched: whether it is indexed, also unchanged, and its `text_hash` or nothing."""

    canonical_key: str
    indexed: bool
    text: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """A host with its politeness: `delay` seconds from a response to the next request, `concurrency` requests at once.

    `own` says whether it is the crawl's own host, whose hold keeps pages in the backlog.
    """

    name: str
    delay: float
    concurrency: int
    own: bool = True


@dataclass(frozen=True, slots=True)
class Admitted:
    """URLs to publish, up to `batch` in one message, each to be delivered after `wait` seconds."""

    urls: tuple[FrontierUrl, ...] = ()
    wait: float = 0.0
    batch: int = 1


@dataclass(frozen=True, slots=True)
class Entered:
    """The beginning of a page's run. `fetch` false: nothing is left to do but to publish `unconfirmed` again."""

    fetch: bool
    #: Whether Redis has the crawl. If not, nothing has begun.
    crawl_found: bool = True
    #: What the domain's former crawl knew of the page, None for a page that is not stored.
    former: Former | None = None
    #: Whether Redis has what the former crawl knew of all its pages.
    former_known: bool = False
    #: What the page admitted when it was completed, to be published again.
    unconfirmed: Admitted = Admitted()
    #: The reason code of the budget that was spent while the page waited: it is completed without a request.
    spent: str = ""
    #: Whether the page is not due, as the former crawl found it: it is completed without a request if it is stored.
    not_due: bool = False
    #: The `error_hash` of the site's error page, if it has the status 200.
    soft_404: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """How a message of a page ends: `d` is done, `x` dead, and `f` failed with an error, to be retried.

    `line` is the page's line of the crawl's record, `text` its `text_hash`. A line that has links gets those that lead
    to new pages. `excluded` are links that are not followed, with their reasons.
    """

    kind: MessageKind = "page"
    #: The key in the frontier; see `FrontierUrl.key`.
    key: str
    state: Literal["d", "x", "f"] = "d"
    error: str = ""
    line: str = ""
    indexed: bool = False
    links: Sequence[FrontierUrl] = ()
    excluded: Sequence[tuple[str, FrontierUrl]] = ()
    text: str = ""

    @property
    def name(self) -> str:
        """The name of the message in Redis."""
        return message_name(self.kind, self.key)


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of a completion: pages admitted now, and whether the crawl has nothing left."""

    admitted: Admitted
    #: The name of the message that handed the pages over.
    name: str
    #: Whether a segment of the crawl's record is to be written now.
    write: bool = False
    ended: bool = False
    #: Pages that failed beside others of their message, each with its error.
    failed: tuple[tuple[CrawlUrl, Exception], ...] = ()


@dataclass(frozen=True, slots=True)
class ExcludedUrls:
    """The excluded URLs of a crawl: their numbers by reason, and the first `LISTED` of each reason.

    A number above `LISTED` is an estimate within 1 %.
    """

    counts: Mapping[str, int]
    listed: tuple[tuple[str, FrontierUrl], ...]


@dataclass(frozen=True, slots=True)
class Failures:
    """Failed attempts of a message: their number, the time of the last one (seconds since the epoch) and its error."""

    number: int
    at: float
    error: str

    def next_attempt(self, retry_ms: int) -> float:
        """Return when the next attempt may begin, in seconds since the epoch; `retry_ms` is the first retry delay."""
        return self.at + retry_ms / 1_000 * 2.0 ** (self.number - 1)

    def __str__(self) -> str:
        return f"{self.number} {'attempt' if self.number == 1 else 'attempts'} failed, the last with: {self.error}"


@dataclass(frozen=True, slots=True)
class FailingCrawl:
    """A running crawl whose requests fail since its last progress: `failing` pages, the last one with `error`."""

    crawl_id: str
    domain: str
    failing: int
    error: str


@dataclass(frozen=True, slots=True)
class Refill:
    """A crawl that needs something: pages to publish, its end, or attention after `idle` seconds without progress.

    `names` are those of the pages in Redis.
    """

    crawl_id: str
    domain: str
    admitted: Admitted
    ended: bool
    idle: float
    names: tuple[str, ...] = ()


@lru_cache(maxsize=16_384)
def fingerprint(key: str) -> str:
    """Return the name of a key in Redis, 16 hex digits; 64 bits tell a million pages apart."""
    return hashlib.blake2b(key.encode(), digest_size=8).hexdigest()


def frontier_url(target: CrawlUrl) -> FrontierUrl:
    """Return the URL that a `page` message names, as the frontier of its crawl has it."""
    return FrontierUrl(target.url, target.canonical_key, target.depth, target.referrer, target.redirects, target.role)


def is_sitemap(entry: UrlEntry) -> bool:
    """Return whether an entry of a crawl record is that of a sitemap, or of the robots.txt that names some."""
    own_id = page_id(frontier_key(canonical_key(entry.url), SITEMAP))
    return entry.reason == Reason.SITEMAP or entry.page_id == own_id


def message_name(kind: MessageKind, key: str) -> str:
    """Return the name of a message in the frontier, by its `frontier_key`."""
    return _PREFIX_OF_KIND[kind] + fingerprint(key)


def foreign_crawl(crawl_id: str, owner: str, domain: str) -> str:
    """Return the error text for a message of one domain that names a crawl of another."""
    return f"crawl_id {crawl_id!r}: it is a crawl of {owner}, not of {domain}"


def crawl_key(crawl_id: str) -> str:
    """Return the Redis key of a crawl; the keys of its parts and fetch results begin with it."""
    return f"{PREFIX}crawl:{plain_id(crawl_id)}"


def crawl_of_fields(crawl_id: str, fields: Mapping[str, str]) -> Crawl | None:
    if "domain" not in fields:
        return None
    return Crawl(
        fields.get("id", crawl_id),  # Its name in a key of Redis may be another one: see `plain_id`.
        fields["domain"],
        fields["start"],
        datetime.fromisoformat(fields["began"]),
        int(fields.get("moves", 0)),
        fields.get("recorded") == "1",
        fields.get("moved_from", ""),
    )


def to_backlog_json(link: FrontierUrl) -> str:
    """Return a page as it waits in Redis, as JSON; the scripts read its charges at the end. A sitemap has none."""
    charged = "" if link.role == SITEMAP else charges(link.canonical_key)
    return _ENCODER.encode([link.url, link.depth, link.referrer, link.redirects, link.role, charged])


def from_backlog_json(entry: str, kind: MessageKind = "page") -> FrontierUrl:
    """Return the page of an output of `to_backlog_json`."""
    url, depth, referrer, redirects, role = json.loads(entry)[:5]
    return FrontierUrl(url, canonical_key(url), depth, referrer, redirects, role, kind)


def admitted_of(items: Iterable[str], wait: float, batch: int = 1) -> Admitted:
    """Return the URLs of backlog items: each is a message's name, then its entry."""
    urls = []
    for item in items:
        name, entry = item[: item.index("[")], item[item.index("[") :]
        kind: MessageKind = _KIND_OF_PREFIX[name[0]] if len(name) > NAME_LENGTH else "page"
        urls.append(from_backlog_json(entry, kind))
    return Admitted(tuple(urls), wait, batch)


def entered_of(row: Sequence[object], *, soft_404: str, former_known: bool) -> Entered:
    """Return the begin of a page's run as the script says it: an action and its values."""
    action, *values = map(str, row)
    match action:
        case "spent":
            return Entered(fetch=False, spent=values[0])
        case "not-due":
            return Entered(fetch=False, former=Former.from_text(values[0]), not_due=True)
        case "fetch":
            former = Former.from_text(values[0]) if values[0] else None
            return Entered(fetch=True, former=former, soft_404=soft_404, former_known=former_known)
    return Entered(fetch=False, unconfirmed=admitted_of(values, 0.0))


def parts_of(key: str, *names: str) -> list[str]:
    return [f"{key}:{name}" if name else key for name in names]


def host_keys(host: str) -> list[str]:
    return [f"{HOST_PREFIX}{host}", f"{HOST_PREFIX}{host}:flight", f"{HOST_PREFIX}{host}:hold"]


def latest_key(domain: str) -> str:
    return f"{PREFIX}domain:{domain}:latest"


def crawls_key(domain: str) -> str:
    return f"{PREFIX}domain:{domain}:crawls"
