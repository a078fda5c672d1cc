"""Crawls in the store: each one's settings, state and counts, changed by conditional writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any, Final, Literal

from pydantic import AwareDatetime, TypeAdapter

from app.crawl.record.keys import CRAWLS_PREFIX, CrawlRef, domain_prefix
from app.errors import ObjectDamaged
from app.storage.damage import decoded_if_intact, read_if_intact, read_intact
from app.storage.reading import check_version, parsing
from app.storage.store import ObjectStore, StoredObject
from app.storage.updating import update_object

#: Version of the format. A release reads those up to its own; fields may be added without a new version.
VERSION: Final = 1

CrawlState = Literal["running", "paused", "cancelled", "done"]
#: A crawl in one of these states does no further work.
FINISHED: Final = frozenset({"cancelled", "done"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlSettings:
    """The settings that a crawl was started with. `host_delay` is in seconds."""

    scope: Literal["exact", "suffix"]
    max_pages: int
    max_depth: int
    host_delay: float
    host_concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlRecord:
    """One crawl of a domain.

    `seeds` are further URLs with which the crawl begins. `timer_timeout` is in seconds; `callback` is the message that
    the crawl's timer publishes; empty where its start page led to another host, so that it has no pack. `moves` is how
    often the start page redirected to another host. `counts` has a number of URLs by state, or any other number by its
    name. Of a crawl that has ended, `seconds` is its duration, and `new`, `changed` and `gone` count pages against the
    former crawl that is done. `reasons` has the number of URLs by reason code, of a crawl that has ended. `closed` are
    the directory patterns that identical texts closed.
    `packed`: the pack was found equal to the pages of this crawl, so its manifest names a former one.
    """

    id: str
    domain: str
    start_url: str
    #: When its first message was handled, with its time zone.
    started: AwareDatetime
    settings: CrawlSettings
    timer_timeout: float
    state: CrawlState = "running"
    seeds: tuple[str, ...] = ()
    callback: Mapping[str, Any] = field(default_factory=dict)
    moves: int = 0
    #: The domain whose start page redirected the crawl here last; empty without a move.
    moved_from: str = ""
    #: Hash of the rules that select the links of a page. With others, the next crawl needs the pages again.
    selection: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    closed: tuple[str, ...] = ()
    packed: bool = False

    @property
    def ref(self) -> CrawlRef:
        """Where the crawl is in the store."""
        return CrawlRef(self.domain, self.id)

    @property
    def is_finished(self) -> bool:
        """Whether the crawl is done or cancelled."""
        return self.state in FINISHED

    def to_json(self) -> bytes:
        """Serialise with sorted keys."""
        named = asdict(self) | {"version": VERSION, "started": self.started.isoformat()}
        return json.dumps(named, sort_keys=True, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes) -> CrawlRecord:
        """Read the output of `to_json`, ignoring fields of later releases; raises ObjectDamaged for any other bytes."""
        with parsing("a crawl record", data):
            named: dict[str, Any] = json.loads(data)
            check_version("crawl record", named["version"], VERSION)
            return _READER.validate_python(named)


_READER: Final = TypeAdapter(CrawlRecord)


def read_crawl(store: ObjectStore, ref: CrawlRef) -> CrawlRecord | None:
    """Return the crawl, or None for an unknown or damaged one; raises StoreError."""
    return read_if_intact(store, ref.key, _parse)


def add_crawl(store: ObjectStore, record: CrawlRecord) -> None:
    """Write a new crawl; raises PreconditionFailed, with nothing written, where the store has one of its id."""
    store.put(record.ref.key, record.to_json(), if_absent=True)


def update_crawl(store: ObjectStore, ref: CrawlRef, change: Callable[[CrawlRecord], CrawlRecord]) -> CrawlRecord | None:
    """Replace the crawl by what `change` makes of it. Return the crawl as it is then, or None for an unknown one.

    `change` may be called again, and nothing is written where it returns an equal record; see `update_object`.
    """

    def changed(stored: StoredObject | None) -> tuple[CrawlRecord | None, bytes | None]:
        former = decoded_if_intact(store, ref.key, stored, _parse)
        record = change(former) if former else None
        return record, record.to_json() if record and record != former else None

    return update_object(store, ref.key, changed)


def list_crawls(store: ObjectStore, domain: str | None = None) -> list[CrawlRecord]:
    """Return the crawls of a domain, or of all domains, newest first, without damaged ones."""
    domains = [] if domain else list(store.list_folders(CRAWLS_PREFIX))
    prefixes = [domain_prefix(domain)] if domain else [f"{CRAWLS_PREFIX}{each}/" for each in domains]
    keys = chain.from_iterable(
        (f"{prefix}{each}/crawl.json" for each in store.list_folders(prefix)) for prefix in prefixes
    )
    crawls = [record for _, record in read_intact(store, keys, _parse)]
    return sorted(crawls, key=lambda crawl: (crawl.started, crawl.id), reverse=True)


def latest_crawl(store: ObjectStore, domain: str) -> CrawlRecord | None:
    """Return the crawl of a domain that was started last, or None without a crawl."""
    return next(iter(list_crawls(store, domain)), None)


def prune(store: ObjectStore, domain: str, *, keep: int) -> list[CrawlRef]:
    """Delete the records of a domain's finished crawls except the `keep` newest, and return which.

    A running or paused crawl is never deleted. A deletion that was interrupted is completed by the next one, since
    crawl.json is deleted last.
    """
    finished = [crawl.ref for crawl in list_crawls(store, domain) if crawl.is_finished]
    for ref in finished[keep:]:
        for stat in list(store.list(ref.urls_prefix)):
            store.delete(stat.key)
        store.delete(ref.excluded_key)
        store.delete(ref.key)
    return finished[keep:]


def _parse(key: str, data: bytes) -> CrawlRecord:
    record = CrawlRecord.from_json(data)
    if record.ref.key != key:
        raise ObjectDamaged(f"it is the record of crawl {record.id!r:.200} of {record.domain!r:.200}")
    return record
