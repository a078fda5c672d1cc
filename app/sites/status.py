"""The status of one domain: pages, open messages, timer, pack."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.values import Progress
from app.crawl.record.crawls import CrawlRecord, read_crawl
from app.crawl.record.keys import CrawlRef
from app.crawl.reports.crawl_report import reason_totals
from app.crawl.urls import parse_domain
from app.errors import ObjectDamaged, PackCorrupt, PackNotFound
from app.pack.manifest import Manifest, read_manifest
from app.redis_state.client import get_quick_redis
from app.redis_state.lease import is_held
from app.sites.crawl_policies import host_delay_of, spent_budgets
from app.sites.site import Site
from app.sites.stored import readable_site
from app.storage.damage import DamageNotes, note_damaged
from app.storage.layout import manifest_key
from app.storage.open import store_of
from app.text.humanize import listed
from app.timers.timers import Timers
from config.settings import Settings, get_settings


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a domain. `seen`, `waiting` and `indexed` count pages; `open`, `done` and `dead` count messages.

    `waiting_elsewhere` are pages that wait in other crawls of the domain, for which its timer waits, too.
    `crawl_state` is `running`, `paused` or `cancelled`, None without a crawl.
    `timer` is the seconds until the timer is due, 0 when it is overdue, None without a timer. `crawl_delay` is the
    seconds between requests that robots.txt demands, where these are more than the site's delay, at most half a minute;
    None otherwise. `reasons` has the numbers of URLs of the latest crawl by reason code, except its sitemaps
    and its soft-404 check. `budgets` has the budgets that stopped URLs of it, with their present values.
    `packing` is whether a pack is built now. `pack_due` is whether that of the latest crawl is missing without a timer.
    Then its message waits for a packer or a retry, or is a dead letter. `damaged` are the keys of objects that could
    not be read.
    `seconds_left` is what the pages that are known take at least at the delay of the host; None without a delay.
    """

    domain: str
    crawl_id: str | None
    crawl_state: str | None
    seen: int
    open: int
    waiting: int
    waiting_elsewhere: int
    done: int
    dead: int
    indexed: int
    timer: float | None
    callback: str | None
    crawl_delay: float | None
    pack: dict[str, Any] | None
    packing: bool
    pack_due: bool
    reasons: dict[str, int]
    budgets: dict[str, int]
    seconds_left: float | None
    damaged: list[str]

    def __str__(self) -> str:
        pack = "no pack"
        if self.pack:
            pack = f"pack {self.pack['generation']} with {self.pack['pages']} pages, built {self.pack['built_at']}"
        pack += f", {'a new one' if self.pack else 'one'} is being built" if self.packing else ""
        pack += "; the pack of its latest crawl waits for a packer, or failed" if self.pack_due else ""
        timer = "no timer" if self.timer is None else f"{self.callback} in {self.timer:.0f} s"
        if self.timer is not None and self.waiting_elsewhere:
            timer += f", but not before the {self.waiting_elsewhere} pages of another crawl, which may be paused"
        waiting = f", {self.waiting} pages wait" if self.waiting else ""
        state = f" (crawl {self.crawl_state})" if self.crawl_state in ("paused", "cancelled") else ""
        pages = f"{self.seen} pages seen{waiting}, {self.open} messages open, {self.dead} dead"
        if self.crawl_delay:
            pages += f"; one request in {self.crawl_delay:g} s, as robots.txt demands"
        if self.seconds_left and self.seconds_left >= 1:
            pages += f"; at least {timedelta(seconds=round(self.seconds_left))} left"
        lines = [f"{self.domain}{state}: {pages}; {timer}; {pack}"]
        if self.reasons:
            lines.append(
                "URLs by reason: " + ", ".join(f"{reason} {number}" for reason, number in self.reasons.items())
            )
        if self.budgets:
            lines.append("stopped by " + ", ".join(f"{name} {value}" for name, value in self.budgets.items()))
        if self.damaged:
            lines.append(f"damaged objects, which count as missing: {listed(self.damaged)}")
        return "\n  ".join(lines)


def lacks_pack(crawl: CrawlRecord, manifest: Manifest | None) -> bool:
    """Return whether a site has no pack, or one that was built before a crawl of it: it lacks the crawl's pages.

    A crawl whose start page led to another host has none of its own.
    """
    if not crawl.callback:
        return False
    if manifest is None:
        return True
    is_of_crawl = crawl.packed or manifest.crawl_id == crawl.id
    return not is_of_crawl and datetime.fromisoformat(manifest.built_at) < crawl.started


def crawl_rate(progress: Progress) -> float | None:
    """Return the completed messages of a crawl a second since its start, None without any yet."""
    if progress.crawl is None or not progress.done:
        return None
    elapsed = (datetime.now(UTC) - progress.crawl.started).total_seconds()
    return progress.done / elapsed if elapsed > 0 else None


def seconds_left(progress: Progress, *, rate: float | None = None, former: int = 0) -> float | None:
    """Return what the known pages of a crawl take at a rate of pages a second, and at least at the delay of the host.

    `former` are the pages of the former crawl, which count as known. None without any rate and delay, and for a crawl
    that is paused or cancelled.
    """
    left = max(progress.open + progress.waiting, former - progress.done - progress.dead)
    seconds = max(left * progress.delay, left / rate if rate else 0.0)
    return seconds or None if progress.state == "running" else None


def status(domain: str, *, settings: Settings | None = None, reasons: bool = True) -> Status:
    """Return the status of a domain, given by its name or by any URL of it; raises InvalidUrl.

    Without `reasons`, it has no totals by reason, and the entries of the crawl's URLs are not read.
    """
    settings = settings or get_settings()
    name = parse_domain(domain)
    redis = get_quick_redis(settings.redis)
    frontier = Frontier(redis)
    progress = frontier.progress(name)
    timer = Timers(redis).running(name)
    store, notes = store_of(settings), DamageNotes(redis)
    store.on_damage = notes.add
    manifest: Manifest | None
    try:
        manifest = read_manifest(store, name)
    except PackNotFound:
        manifest = None
    except PackCorrupt as error:
        manifest = None
        key = manifest_key(name)
        note_damaged(store, ObjectDamaged(str(error), key, store.stat(key).etag))
    is_packing, latest = is_held(redis, f"pack:{name}"), None
    if progress.crawl and not (timer or is_packing):
        latest = read_crawl(store, CrawlRef(name, progress.crawl.id))
    site = readable_site(store, name) or Site.model_construct(domain=name)
    totals = reason_totals(frontier, store, name) if reasons else {}
    return Status(
        domain=name,
        crawl_id=progress.crawl.id if progress.crawl else None,
        crawl_state=progress.state if progress.crawl else None,
        **{
            name: getattr(progress, name)
            for name in ("seen", "open", "waiting", "waiting_elsewhere", "done", "dead", "indexed")
        },
        timer=max(timer.remaining, 0.0) if timer else None,
        callback=str(timer.callback.message["type"]) if timer else None,
        crawl_delay=progress.delay if progress.delay > host_delay_of(site, settings) else None,
        pack=asdict(manifest) if manifest else None,
        packing=is_packing,
        pack_due=latest is not None and latest.state == "done" and lacks_pack(latest, manifest),
        reasons=totals,
        budgets=spent_budgets(site, settings, totals),
        seconds_left=seconds_left(progress),
        damaged=[each.key for each in notes.present(store, name)],
    )
