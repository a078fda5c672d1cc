"""What an operator reads of one site: its plan, its crawls side by side, the one under way, its pack, its searches."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

from app.cluster.protocol import Routes
from app.crawl.record.crawls import CrawlRecord, list_crawls
from app.crawl.record.reasons import Reason
from app.crawl.reports.crawl_report import in_order
from app.crawl.urls import parse_domain
from app.errors import ObjectDamaged, ResourceNotFound
from app.operations.context import OperatorContext
from app.operations.site_list import route_trouble
from app.operations.sites import site_row
from app.sites.search_counter import THRESHOLD
from app.sites.search_reports import read_reports, today, total
from app.sites.site import Site
from app.sites.status import Status, crawl_rate, seconds_left, status
from app.sites.stored import read_site

#: What the crawl under way has of its progress.
_COUNTS: Final = ("state", "seen", "done", "dead", "indexed", "waiting", "open", "delay")
#: Days of a report of searches, with today.
REPORT_DAYS: Final = 30
#: Reasons of URLs that could not be fetched, besides the HTTP statuses from 400 on.
_FAILED: Final = frozenset(
    {Reason.DEAD_LETTERED, Reason.LOST, Reason.INVALID_REDIRECT, Reason.TOO_MANY_REDIRECTS, Reason.UNREADABLE}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlFigures:
    """One crawl in the comparison. A figure that is not recorded is null; `started` is ISO 8601.

    `new`, `changed` and `gone` count pages against the former finished crawl. `failed` has numbers of URLs by reason.
    """

    id: str
    started: str
    state: str
    pages: int | None
    new: int | None
    changed: int | None
    gone: int | None
    failed: Mapping[str, int] | None
    seconds: int | None
    cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCrawl:
    """The crawl under way. `rate` is completed messages a second since its start, None without any yet.

    `seconds_left` is what the known pages take at this rate, and at least at the delay of the host; None while paused.
    """

    id: str
    started: str
    state: str
    seen: int
    done: int
    dead: int
    indexed: int
    waiting: int
    open: int
    delay: float
    rate: float | None
    seconds_left: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPack:
    """Where the pack is served. `is_known` is whether the orchestrator said so; `trouble` is in words, or empty."""

    is_known: bool
    searchers: tuple[str, ...] = ()
    newest: int = 0
    missing: int = 0
    generation: int | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteView:
    """One site. `site` is null for a domain that is only crawled or packed, and for settings that cannot be read.

    `start_url` is where its next crawl begins: as its settings say, else where the latest one began.
    """

    domain: str
    start_url: str
    site: Site | None
    fault: str
    plan: Mapping[str, Any] | None
    status: Status
    running: RunningCrawl | None
    crawls: tuple[CrawlFigures, ...]
    served: ServedPack

    def as_json(self) -> dict[str, Any]:
        """Return the view as the API answers with it. Of secrets it has the names."""
        return {
            "domain": self.domain,
            "fields": self.site.fields() if self.site else None,
            "fault": self.fault,
            "plan": dict(self.plan) if self.plan else None,
            "pack": self.status.pack,
            "served": asdict(self.served),
            "running": asdict(self.running) if self.running else None,
            "crawls": [asdict(each) for each in self.crawls],
            "timer": self.status.timer,
            "callback": self.status.callback,
            "damaged": self.status.damaged,
        }


def site_view(ops: OperatorContext, domain: str, routes: Routes | None) -> SiteView:
    """Return what there is to read of a domain; raises InvalidUrl, and ResourceNotFound if there is nothing at all."""
    name = parse_domain(domain)
    site, fault = None, ""
    try:
        site = read_site(ops.store, name)
    except ObjectDamaged as error:
        fault = str(error)
    found = status(name, settings=ops.settings, reasons=False)
    crawls = list_crawls(ops.store, name)
    if not (site or fault or crawls or found.pack or found.crawl_id or found.timer is not None):
        raise ResourceNotFound(f"{name} is no site, and it was never crawled or packed")
    former = crawls[0].start_url if crawls else f"https://{name}/"
    return SiteView(
        domain=name,
        start_url=site.seeds[0] if site else former,
        site=site,
        fault=fault,
        plan=site_row(ops, site) if site else None,
        status=found,
        running=_running(ops, name),
        crawls=tuple(map(figures, crawls)),
        served=_served(name, routes),
    )


def figures(record: CrawlRecord) -> CrawlFigures:
    """Return the figures that a crawl's record has. Only a finished one has them."""
    counts, failed = record.counts, None
    if record.is_finished and record.reasons:
        failed = in_order(
            {
                code: number
                for code, number in record.reasons.items()
                if code in _FAILED or (code.isdecimal() and int(code) >= 400)
            }
        )
    return CrawlFigures(
        id=record.id,
        started=record.started.isoformat(),
        state=record.state,
        pages=counts.get("indexed"),
        new=counts.get("new"),
        changed=counts.get("changed"),
        gone=counts.get("gone"),
        failed=failed,
        seconds=counts.get("seconds"),
        cut=bool(counts.get("cut")),
    )


def edition(site: Site) -> str:
    """Return the hash of a site: a form names the version that it shows."""
    return hashlib.blake2b(site.to_json(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSearches:
    """Searches and clicks of a site, the most frequent first; `queries` are those without results.

    `counted` is whether they are counted now. A query is listed once it was seen `threshold` times on a day.
    """

    domain: str
    counted: bool
    since: str
    days: int
    threshold: int
    searches: int
    without_results: int
    clicks: int
    queries: dict[str, int]
    clicked: list[dict[str, Any]]


def searches(ops: OperatorContext, domain: str) -> SiteSearches:
    """Return the searches and clicks of a site of the last REPORT_DAYS days; raises InvalidUrl."""
    name, since = parse_domain(domain), today() - timedelta(days=REPORT_DAYS - 1)
    reports = [report for _, report in read_reports(ops.store, name, since=since)]
    site = read_site(ops.store, name)
    return SiteSearches(
        domain=name,
        counted=site is not None and site.search_report,
        since=since.isoformat(),
        days=len(reports),
        threshold=THRESHOLD,
        **total(reports).as_json(),
    )


def _running(ops: OperatorContext, domain: str) -> RunningCrawl | None:
    progress = ops.frontier.progress(domain)
    crawl = progress.crawl
    if crawl is None or not (progress.open or progress.waiting or ops.frontier.is_active(domain)):
        return None
    rate = crawl_rate(progress)
    return RunningCrawl(
        id=crawl.id,
        started=crawl.started.isoformat(),
        rate=rate,
        seconds_left=seconds_left(progress, rate=rate),
        **{name: getattr(progress, name) for name in _COUNTS},
    )


def _served(domain: str, routes: Routes | None) -> ServedPack:
    if routes is None:
        return ServedPack(is_known=False)
    for route in routes.routes:
        if route.domain == domain:
            return ServedPack(
                is_known=True,
                searchers=route.searchers,
                newest=route.newest,
                missing=route.missing,
                generation=route.generation,
                trouble=route_trouble(route),
            )
    return ServedPack(is_known=True)
