"""Search reports: counts of searches and clicks of a site, one object for each day, without anything about a person."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, TypeAlias

from app.errors import ObjectDamaged
from app.storage.damage import read_intact
from app.storage.reading import check_version, parsing
from app.storage.store import ObjectStore, StoredObject
from app.storage.updating import update_object

#: Keys of reports begin with this.
REPORTS_PREFIX: Final = "search-reports/"
#: Days after which a report is deleted.
RETENTION: Final = 90
#: Queries, and pairs of a query and a URL, that a report keeps: the most frequent ones.
MAX_ENTRIES: Final = 1_000
_VERSION: Final = 1

#: A query and the URL that was opened from its results.
Click: TypeAlias = tuple[str, str]


@dataclass(slots=True)
class SearchReport:
    """Counts of one site and day, or of several days. `queries` are those without results."""

    searches: int = 0
    without_results: int = 0
    clicks: int = 0
    queries: Counter[str] = field(default_factory=Counter)
    clicked: Counter[Click] = field(default_factory=Counter)

    def __bool__(self) -> bool:
        return bool(self.searches or self.clicks)

    def __add__(self, other: SearchReport) -> SearchReport:
        return SearchReport(
            self.searches + other.searches,
            self.without_results + other.without_results,
            self.clicks + other.clicks,
            self.queries + other.queries,
            self.clicked + other.clicked,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the counts, and the most frequent entries, for JSON."""
        clicked = self.clicked.most_common(MAX_ENTRIES)
        return {
            "searches": self.searches,
            "without_results": self.without_results,
            "clicks": self.clicks,
            "queries": dict(self.queries.most_common(MAX_ENTRIES)),
            "clicked": [{"query": query, "url": url, "clicks": number} for (query, url), number in clicked],
        }

    def to_json(self) -> bytes:
        """Serialise as the store has it."""
        return json.dumps({"version": _VERSION, **self.as_json()}, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes) -> SearchReport:
        """Read the output of `to_json`; raises ObjectDamaged for any other bytes."""
        with parsing("a search report", data):
            named = json.loads(data)
            check_version("search report", named["version"], _VERSION)
            return cls(
                int(named["searches"]),
                int(named["without_results"]),
                int(named["clicks"]),
                Counter({str(query): int(number) for query, number in named["queries"].items()}),
                Counter({(str(each["query"]), str(each["url"])): int(each["clicks"]) for each in named["clicked"]}),
            )


def report_prefix(domain: str) -> str:
    """Return the prefix of the object keys of a site's reports."""
    return f"{REPORTS_PREFIX}{domain}/"


def report_key(domain: str, day: date) -> str:
    """Return the object key of the report of a site and a day."""
    return f"{report_prefix(domain)}{day.isoformat()}.json"


def add_to_report(store: ObjectStore, domain: str, day: date, counts: SearchReport) -> None:
    """Add counts to the report of a day; raises StoreError.

    An unreadable report is replaced: counts are no reason to fail again and again.
    """

    def added(stored: StoredObject | None) -> tuple[None, bytes]:
        former = SearchReport()
        with suppress(ObjectDamaged):
            former = SearchReport.from_json(stored.data) if stored else former
        return None, (former + counts).to_json()

    update_object(store, report_key(domain, day), added)


def read_reports(store: ObjectStore, domain: str, *, since: date) -> Iterator[tuple[date, SearchReport]]:
    """Yield the reports of a site by day, from `since` on, without damaged ones; raises StoreError."""
    keys = [key for day, key in _listed(store, report_prefix(domain)) if day >= since]
    for key, report in read_intact(store, keys, lambda _, data: SearchReport.from_json(data)):
        yield _day_of(key) or since, report


def delete_old_reports(store: ObjectStore, *, today: date) -> int:
    """Delete the reports of all sites that are older than RETENTION days, and return how many."""
    oldest = today - timedelta(days=RETENTION)
    old = [key for day, key in _listed(store, REPORTS_PREFIX) if day < oldest]
    for key in old:
        store.delete(key)
    return len(old)


def today() -> date:
    """Return the present day in UTC, by which counts are kept."""
    return datetime.now(UTC).date()


def total(reports: Iterable[SearchReport]) -> SearchReport:
    """Return the sum of reports."""
    return sum(reports, SearchReport())


def _listed(store: ObjectStore, prefix: str) -> list[tuple[date, str]]:
    dated = ((_day_of(stat.key), stat.key) for stat in store.list(prefix))
    return [(day, key) for day, key in dated if day is not None]


def _day_of(key: str) -> date | None:
    with suppress(ValueError):
        return date.fromisoformat(key.rpartition("/")[2].removesuffix(".json"))
    return None
