"""Take a site, one page of it, or the pack of a bad crawl out of what is searched."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from app.broker.errors import DeadSetBusy, Postpone, PublishFailed
from app.crawl.frontier.values import LEASE
from app.crawl.record.removed_sites import note_finished
from app.crawl.urls import CrawlUrl, parse_domain
from app.errors import ActRefused, InvalidSite, PreconditionFailed, SiteBusy
from app.messages.dead_sets import domain_of
from app.messages.envelopes import delayed_message, event_message, site_message
from app.operations.context import OperatorContext
from app.operations.crawls import page_of
from app.pack.manifest import Manifest, note_announced
from app.pack.rollback import Rollback, plan_rollback
from app.redis_state.lease import lease
from app.sites.removal import SiteInventory, SiteRemoval
from app.sites.site import Site
from app.sites.stored import update_site
from app.storage.layout import Tombstone, content_key, may_be_page, page_id, to_json
from app.topology.queues import DEAD_SET
from app.topology.retry_policies import budgets

#: Seconds between two checks of the requests that have not ended, and of the lease of the pack.
_PAUSE = 0.2
#: Seconds to wait for a packer that is at work.
_PACKER_WAIT = 1_600.0
#: Seconds until a blocked page is deleted again, if a request that was in flight has stored it meanwhile.
_AGAIN = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedPage:
    """A page after it was blocked or unblocked. `stored` is whether it was stored; null for one that is unblocked."""

    url: str
    domain: str
    blocked: bool
    stored: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackReport:
    """What a rollback would serve, or what it serves now.

    It `serves` the former generation and `replaces` the present one. A searcher has `fetched` bytes to read.
    `generation` is the number under which the former one is served now; null if nothing was changed.
    """

    domain: str
    serves: int
    replaces: int
    fetched: int
    generation: int | None = None

    @classmethod
    def of(cls, plan: Rollback, generation: int | None = None) -> RollbackReport:
        """Describe a plan, or with a `generation` what was done."""
        return cls(
            domain=plan.present.domain,
            serves=plan.former.generation,
            replaces=plan.present.generation,
            fetched=plan.fetched,
            generation=generation,
        )


def inventory(ops: OperatorContext, domain: str) -> SiteInventory:
    """Return what there is of a domain; raises InvalidUrl for an invalid one."""
    return SiteRemoval(parse_domain(domain), ops.store, ops.redis).inventory()


def remove_sites(
    ops: OperatorContext, domains: Collection[str], *, why: str = "", packer_wait: float = _PACKER_WAIT
) -> tuple[list[SiteInventory], int]:
    """Delete all there is of these domains; return what there was, and the number of dead letters.

    Waits up to `packer_wait` seconds for a packer at work on each. One that is still at work holds up no other domain,
    and SiteBusy is raised at the end. Work queues and delay queues are not read. Messages that were published before
    the deletion are dropped by the workers that receive them; those that are published after this function has returned
    are not.
    """
    with ops.act("site remove", ", ".join(domains), why=why) as act:
        publisher = ops.client_publisher()
        removals = [SiteRemoval(domain, ops.store, ops.redis) for domain in domains]
        found = {removal.domain: removal.inventory() for removal in removals}
        for removal in removals:
            removal.stop(at=_next_second())
        deadline = time.monotonic() + LEASE
        while any(removal.requests_in_flight() for removal in removals) and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        # Also what pages in work published until they ended.
        at = _next_second()
        reasons = {removal.domain: _delete(ops, removal, packer_wait, at=at) for removal in removals}
        busy = list(filter(None, reasons.values()))
        deleted = [each for domain, each in found.items() if not reasons[domain]]
        # Times of messages are whole seconds: what is published from now on is no older than the removal.
        time.sleep(max(0.0, at - time.time()))
        gone = {each.domain for each in deleted}
        # Searchers must not wait for the dead letters, on which another process may work for long.
        publisher.publish([event_message("update", {"domain": domain}) for domain in sorted(gone)])
        done = [f"{each.domain} is deleted: {each}" for each in deleted]
        try:
            letters = ops.dead_sets.only(DEAD_SET).forget(lambda letter: domain_of(letter) in gone)
        except DeadSetBusy as error:
            raise DeadSetBusy("; ".join((*done, *busy, f"dead letters are not deleted: {error}"))) from error
        for domain in gone:
            note_finished(ops.store, domain, at)
        act.result = "; ".join((*done, f"{letters} dead letters"))
        if busy:
            raise SiteBusy("; ".join((*done, *busy)))
    return deleted, letters


def block(ops: OperatorContext, url: str, *, site: str = "", why: str = "") -> BlockedPage:
    """Remove one page from store, pack and searchers, and never request it again.

    `site` is its domain, if that is not the host of the URL.
    """
    page = page_of(url, site)
    with ops.act("block", page.url, why=why, domain=page.domain) as act:
        _set_blocked(ops, page, blocked=True)
        own_id = page_id(page.canonical_key)
        key = content_key(page.domain, own_id)
        stored = may_be_page(ops.store, key)
        if stored:
            grave = Tombstone(canonical_key=page.canonical_key, url=page.url, domain=page.domain, why="blocked")
            ops.store.put(key, to_json(grave))
        headers, publisher = budgets(ops.settings), ops.client_publisher()
        publisher.publish([site_message("pack_incremental", headers, domain=page.domain, page_ids=[own_id])])
        # Workers declare the delay queues: without one that ever ran, no request is in flight.
        with suppress(PublishFailed):
            publisher.publish([delayed_message("index", headers, _AGAIN, url=page.url, domain=page.domain, pack=True)])
        act.result = "removed" if stored else "it was not stored"
    return BlockedPage(url=page.url, domain=page.domain, blocked=True, stored=stored)


def unblock(ops: OperatorContext, url: str, *, site: str = "", why: str = "") -> BlockedPage:
    """Allow a blocked page again. The next crawl indexes it. Raises InvalidSite."""
    page = page_of(url, site)
    with ops.act("unblock", page.url, why=why, domain=page.domain):
        _set_blocked(ops, page, blocked=False)
    return BlockedPage(url=page.url, domain=page.domain, blocked=False, stored=None)


def rollback_of(ops: OperatorContext, domain: str, *, replaces: int | None = None) -> Rollback:
    """Return the rollback of a site's present pack, with nothing changed; raises InvalidUrl for an invalid domain.

    Raises ActRefused if no former pack can be served, or if the present generation is not the one that it `replaces`.
    """
    name = parse_domain(domain)
    plan = plan_rollback(ops.store, name)
    if replaces not in (None, plan.present.generation):
        raise ActRefused(f"{name}: generation {plan.present.generation} is served by now, not {replaces}: look again")
    return plan


def roll_back(ops: OperatorContext, rollback: Rollback, *, why: str = "") -> Manifest:
    """Serve a site's former pack again, and return its new manifest. Stored pages stay as they are.

    Raises ActRefused, with nothing changed, when another pack was written since the rollback was planned.
    """
    domain = rollback.present.domain
    with ops.act("site rollback", domain, why=why) as act:
        publisher = ops.client_publisher()
        try:
            manifest = rollback.apply(ops.store)
        except PreconditionFailed as error:
            raise ActRefused(f"{domain}: another pack was written meanwhile: look again") from error
        # The orchestrator's next scan finds the pack of a command that is killed here.
        publisher.publish([event_message("update", {"domain": domain})])
        note_announced(ops.store, domain, manifest.sha256)
        act.result = f"serves {rollback}"
    return manifest


def _set_blocked(ops: OperatorContext, page: CrawlUrl, *, blocked: bool) -> None:
    def change(former: Site | None) -> Site:
        if former is None and not blocked:
            raise InvalidSite(f"{page.domain} is no site, so nothing of it is blocked")
        return (former or Site.of(page.domain, {})).with_blocked(page.url, blocked=blocked)

    update_site(ops.store, page.domain, change)


def _next_second() -> int:
    return int(time.time()) + 1


def _delete(ops: OperatorContext, removal: SiteRemoval, packer_wait: float, *, at: int) -> str:
    """Delete objects and keys while no packer is at work on the domain; return why it is there still, or nothing."""
    deadline = time.monotonic() + packer_wait
    while True:
        try:
            with lease(ops.redis, f"pack:{removal.domain}"):
                removal.delete(at=at)
                return ""
        except Postpone:
            if time.monotonic() > deadline:
                name = removal.domain
                return f"{name} is being packed and is not deleted: run `perennial site remove {name}`"
            time.sleep(_PAUSE)
