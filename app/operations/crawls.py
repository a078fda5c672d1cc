"""Crawls of a site: what operators read of them, and acts that index, pack, pause, resume, cancel and repair."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.broker.errors import InvalidMessage
from app.crawl.record.crawls import CrawlRecord, CrawlState, list_crawls, read_crawl, update_crawl
from app.crawl.recorder import CrawlRecorder
from app.crawl.reports.crawl_report import CrawlReport, read_report
from app.crawl.reports.explanation import Explanation, PastEntry, explain_url, url_history
from app.crawl.urls import CrawlUrl, parse_crawl_url, parse_domain, parse_url
from app.errors import ActRefused, ResourceNotFound
from app.operations.context import OperatorContext
from app.sites.crawl_policies import SitePolicies
from app.sites.sweep import Action, Sweep
from app.storage.damage import DamageNotes
from app.timers.timers import Timers


def explain(ops: OperatorContext, url: str, domain: str = "") -> Explanation:
    """Return the state of one URL; `domain` is its site, if that is not its host."""
    return explain_url(ops.frontier, ops.store, page_of(url, domain), retry_ms=ops.settings.retry_timeout_ms)


def history(ops: OperatorContext, url: str, domain: str = "") -> list[PastEntry]:
    """Return what each recorded crawl says of one URL, the latest crawl first."""
    return url_history(ops.frontier, ops.store, page_of(url, domain))


def latest(ops: OperatorContext, domain: str) -> CrawlReport:
    """Return the states and reasons of the URLs of a domain's latest crawl; raises ResourceNotFound."""
    name = parse_domain(domain)
    report = read_report(ops.frontier, ops.store, name)
    if report is None:
        raise ResourceNotFound(f"{name} has no crawl record")
    return report


def page_of(url: str, domain: str = "") -> CrawlUrl:
    """Return a page; `domain` is its site, if that is not its host. Raises InvalidUrl and OutOfScope."""
    # An empty URL is an error here, though a message could name its page by other fields.
    return parse_crawl_url({"url": parse_url(url), "domain": domain or None})


#: The states that a crawl may have before it gets another one.
FORMER_STATES: dict[CrawlState, frozenset[str]] = {
    "paused": frozenset({"running"}),
    "running": frozenset({"paused"}),
    "cancelled": frozenset({"running", "paused"}),
}
_ACTS: dict[CrawlState, str] = {"paused": "pause", "running": "resume", "cancelled": "cancel"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PostedWork:
    """A message that was posted, by its type; `url` is the page that it is about, empty for a site."""

    posted: str
    domain: str
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedCrawls:
    """The crawls of a site that got a state, by their ids."""

    domain: str
    state: CrawlState
    crawls: list[str]


def index(ops: OperatorContext, url: str, *, crawl: bool = False, now: bool = False, why: str = "") -> PostedWork:
    """Post the index of a page, or with `crawl` of the site from it.

    With `now` the page is packed as soon as it is stored. Raises InvalidUrl, OutOfScope, and InvalidMessage for both.
    """
    if crawl and now:
        raise InvalidMessage("crawl and now do not go together: a crawl is packed when it has ended")
    page = page_of(url)
    kind = "index+crawl" if crawl else "index"
    with ops.act(kind, page.url, why=why):
        ops.post(kind, url=page.url, domain=page.domain, **({"pack": True} if now else {}))
    return PostedWork(posted=kind, domain=page.domain, url=page.url)


def pack(ops: OperatorContext, domain: str, *, full: bool = False, force: bool = False, why: str = "") -> PostedWork:
    """Post the pack of a domain, with `full` of every stored page.

    With `force` it may replace a much larger pack. Raises InvalidUrl for an invalid domain.
    """
    name = parse_domain(domain)
    kind = "pack_full" if full else "pack_incremental"
    with ops.act(kind, name, why=why, **({"force": True} if force else {})):
        ops.post(kind, domain=name, **({"force": True} if force else {}))
    return PostedWork(posted=kind, domain=name)


def fire_timer(ops: OperatorContext, domain: str, *, why: str = "") -> str:
    """Let a domain's timer be due now: the next tick publishes its callback. Return the domain.

    Raises InvalidUrl, and ResourceNotFound for a domain without a timer.
    """
    name = parse_domain(domain)
    with ops.act("timer fire", name, why=why):
        if not Timers(ops.redis).make_due(name):
            raise ResourceNotFound(f"{name} has no timer")
    return name


def change_crawls(ops: OperatorContext, domain: str, state: CrawlState, *, why: str = "") -> ChangedCrawls:
    """Change the state of a domain's crawls that may get it, in the store, then in Redis.

    Crawls that a killed command had changed in the store alone are among them. Raises InvalidUrl for an invalid domain,
    and ActRefused where no crawl may get the state.
    """
    name = parse_domain(domain)
    with ops.act(_ACTS[state], name, why=why) as act:
        changed = set_states(ops, name, state)
        if not changed:
            raise ActRefused(f"{name} has no crawl that is {' or '.join(sorted(FORMER_STATES[state]))}")
        act.result = f"{len(changed)} crawls are {state}"
        act.details["crawls"] = changed
    return ChangedCrawls(domain=name, state=state, crawls=changed)


def set_states(ops: OperatorContext, domain: str, state: CrawlState) -> list[str]:
    """Change the state of a domain's crawls as `change_crawls` does, as a part of another act."""
    former, frontier = FORMER_STATES[state], ops.frontier
    changed = []
    for record in list_crawls(ops.store, domain):
        if record.state not in former and (record.state != state or frontier.state(record.id) in (state, None)):
            continue

        def change(present: CrawlRecord) -> CrawlRecord:
            return replace(present, state=state) if present.state in former else present

        updated = update_crawl(ops.store, record.ref, change)
        if updated is None or updated.state != state:
            continue  # It has ended since it was listed.
        changed.append(record.id)
        # Redis gets the state of the record, also of one that another operator changes at the same time.
        present: CrawlRecord | None = updated
        while present and present.state in FORMER_STATES:
            frontier.set_state(present.id, present.state)
            before, present = present, read_crawl(ops.store, record.ref)
            if present and present.state == before.state:
                break
    return changed


def repair(ops: OperatorContext, domain: str = "", *, why: str = "") -> list[Action]:
    """Compare the store with Redis, of one site or of all, and begin again what is missing; return what was done."""
    name = parse_domain(domain) if domain else ""
    with ops.act("repair", name or "all sites", why=why) as act:
        ops.store.on_damage = DamageNotes(ops.redis).add
        recorder = CrawlRecorder(ops.frontier, ops.store, SitePolicies(ops.store, ops.settings))
        sweep = Sweep(ops.store, ops.frontier, Timers(ops.redis), recorder, ops.settings.timer_timeout)
        actions = list(sweep.run(name))
        act.result = "; ".join(map(str, actions)) or "nothing was missing"
    return actions
