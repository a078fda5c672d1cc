"""`perennial site remove`, `block` and `unblock`: take a site, or one page of it, out of store, packs and searchers."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated

import typer

from app.broker.errors import ApplicationError, Postpone, PublishFailed
from app.cli.arguments import AsJson, Domain, Yes
from app.cli.context import client_publisher
from app.cli.printing import confirm, print_result
from app.crawl.frontier.values import LEASE
from app.crawl.urls import Target, parse_domain, parse_target
from app.errors import InvalidSite
from app.messages.dead_sets import dead_sets, domain_of
from app.messages.envelopes import delayed_message, event_message, site_message
from app.redis_state.client import get_redis
from app.redis_state.lease import lease
from app.sites.removal import Holdings, SiteRemoval
from app.sites.site import Site
from app.sites.stored import update_site
from app.storage.layout import Tombstone, content_key, may_be_page, page_id, to_json
from app.storage.open import store_of
from app.topology.queues import DEAD_SET
from app.topology.retry_policies import budgets
from config.settings import Settings, get_settings

#: Seconds between two looks at the requests that have not ended, and at the lease of the pack.
_PAUSE = 0.2
#: Seconds to wait for a packer that is at work.
_PACKER_WAIT = 1_600.0
#: Seconds until a blocked page is deleted again, if a request that was in flight has stored it meanwhile.
_AGAIN = 40.0

OfSite = Annotated[str, typer.Option("--site", metavar="DOMAIN", help="The site, if it is not the host of the URL.")]


def remove(
    domain: Domain,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete all there is of a site, and drop its messages."""
    settings = get_settings()
    name = parse_domain(domain)
    found = _removal(name, settings).holdings()
    if not as_json:
        typer.echo(f"{name}: {found}" if found else f"{name}: there is nothing but messages, if any")
    if not yes:
        confirm(
            f"Delete all of {name}, its messages and dead letters?", without_terminal="without a terminal, add --yes"
        )
    [deleted], letters = remove_sites([name])
    text = f"{name}: deleted, and {letters} dead letters; workers drop its messages, searchers follow"
    print_result({**asdict(deleted), "removed_dead_letters": letters}, text, as_json=as_json)


def remove_sites(domains: Collection[str]) -> tuple[list[Holdings], int]:
    """Delete all there is of these domains; return what there was, and the number of dead letters.

    Work queues and delay queues are not read. Messages that were published before the deletion are dropped by the
    workers that receive them; those that are published after this function has returned are not.
    """
    settings = get_settings()
    publisher = client_publisher(settings)
    removals = [_removal(domain, settings) for domain in domains]
    for removal in removals:
        removal.stop(at=_next_second())
    deadline = time.monotonic() + LEASE
    while any(removal.requests_in_flight() for removal in removals) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    # Also what pages in work published until they ended.
    at = _next_second()
    deleted = [_delete(removal, settings, at=at) for removal in removals]
    letters = dead_sets(settings).only(DEAD_SET).forget(lambda letter: domain_of(letter) in domains)
    # Times of messages are whole seconds: what is published from now on is no older than the removal.
    time.sleep(max(0.0, at - time.time()))
    publisher.publish([event_message("update", {"domain": domain}) for domain in domains])
    return deleted, letters


def block(url: Annotated[str, typer.Argument(help="A page.")], site: OfSite = "", as_json: AsJson = False) -> None:
    """Remove one page from store, pack and searchers, and never request it again."""
    settings, page = get_settings(), _page(url, site)
    _block(page.domain, page.url, blocked=True)
    store = store_of(settings)
    key = content_key(page.domain, page_id(page.canonical_key))
    stored = may_be_page(store, key)
    if stored:
        store.put(
            key, to_json(Tombstone(canonical_key=page.canonical_key, url=page.url, domain=page.domain, why="blocked"))
        )
    headers, publisher = budgets(settings), client_publisher(settings)
    publisher.publish([site_message("pack_incremental", headers, domain=page.domain)])
    # Workers declare the delay queues: without one that ever ran, no request is in flight.
    with suppress(PublishFailed):
        publisher.publish([delayed_message("index", headers, _AGAIN, url=page.url, domain=page.domain, pack=True)])
    text = "removed; searchers follow" if stored else "it was not stored"
    result = {"url": page.url, "domain": page.domain, "blocked": True, "stored": stored}
    print_result(result, f"{page.url} blocked, and {text}", as_json=as_json)


def unblock(url: Annotated[str, typer.Argument(help="A page.")], site: OfSite = "", as_json: AsJson = False) -> None:
    """Allow a blocked page again. The next crawl, or `perennial index --now`, indexes it."""
    page = _page(url, site)
    _block(page.domain, page.url, blocked=False)
    result = {"url": page.url, "domain": page.domain, "blocked": False}
    print_result(result, f"{page.url} is no longer blocked", as_json=as_json)


def _block(domain: str, url: str, *, blocked: bool) -> None:
    def change(former: Site | None) -> Site:
        if former is None and not blocked:
            raise InvalidSite(f"{domain} is no site, so nothing of it is blocked")
        return (former or Site.of(domain, {})).with_blocked(url, blocked=blocked)

    update_site(store_of(get_settings()), domain, change)


def _next_second() -> int:
    return int(time.time()) + 1


def _delete(removal: SiteRemoval, settings: Settings, *, at: int) -> Holdings:
    """Delete objects and keys while no packer is at work on the domain."""
    deadline = time.monotonic() + _PACKER_WAIT
    while True:
        try:
            with lease(get_redis(settings.redis), f"pack:{removal.domain}"):
                return removal.delete(at=at)
        except Postpone as busy:
            if time.monotonic() > deadline:
                raise ApplicationError(f"{removal.domain}: {busy}; run it again") from busy
            time.sleep(_PAUSE)


def _page(url: str, site: str) -> Target:
    message = {"url": url, **({"domain": site} if site else {})}
    return parse_target(message, scope="suffix")


def _removal(domain: str, settings: Settings) -> SiteRemoval:
    return SiteRemoval(domain, store_of(settings), get_redis(settings.redis))
