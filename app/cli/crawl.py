"""`perennial pause`, `resume`, `cancel` and `repair`: what an operator does to crawls."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from app.cli.arguments import AsJson, Domain
from app.cli.printing import print_json, print_result
from app.crawl.crawl_records import CrawlRecords
from app.crawl.frontier.frontier import Frontier
from app.crawl.record.crawls import CrawlRecord, CrawlState, list_crawls, update_crawl
from app.crawl.urls import parse_domain
from app.redis_state.client import get_redis
from app.sites.crawl_policies import SitePolicies
from app.sites.sweep import Sweep
from app.storage.damage import DamageNotes
from app.storage.open import store_of
from app.timers.timers import Timers
from config.settings import get_settings

cli = typer.Typer()


@cli.command()
def pause(domain: Domain, as_json: AsJson = False) -> None:
    """Pause a domain's crawls: open pages go back to their backlogs, and no page is requested."""
    _change(domain, "paused", frozenset({"running"}), as_json)


@cli.command()
def resume(domain: Domain, as_json: AsJson = False) -> None:
    """Resume a domain's paused crawls."""
    _change(domain, "running", frozenset({"paused"}), as_json)


@cli.command()
def cancel(domain: Domain, as_json: AsJson = False) -> None:
    """Cancel a domain's crawls for good. Stored pages are packed."""
    _change(domain, "cancelled", frozenset({"running", "paused"}), as_json)


@cli.command()
def repair(
    domain: Annotated[str, typer.Argument(metavar="[DOMAIN]", help="The site's domain; without it, all sites.")] = "",
    as_json: AsJson = False,
) -> None:
    """Compare the store with Redis, and begin again what is missing there."""
    settings = get_settings()
    redis, store = get_redis(settings.redis), store_of(settings)
    store.on_damage = DamageNotes(redis).add
    frontier = Frontier(redis)
    records = CrawlRecords(frontier, store, SitePolicies(store, settings))
    sweep = Sweep(store, frontier, Timers(redis), records, settings.timer_timeout)
    actions = list(sweep.run(parse_domain(domain) if domain else ""))
    if as_json:
        print_json({"domain": action.domain, "action": action.text} for action in actions)
        return
    typer.echo("\n".join(map(str, actions)) or "nothing was missing")


def change_crawls(domain: str, state: CrawlState, former: frozenset[str]) -> list[str]:
    """Change the state of a domain's crawls that are in one of the former states: in the store, then in Redis.

    Return their ids, and those of crawls that a killed command had changed in the store alone.
    """
    settings = get_settings()
    store = store_of(settings)
    frontier = Frontier(get_redis(settings.redis))
    changed = []
    for record in list_crawls(store, domain):
        if record.state not in former and (record.state != state or frontier.state(record.id) in (state, None)):
            continue

        def change(present: CrawlRecord) -> CrawlRecord:
            return replace(present, state=state) if present.state in former else present

        update_crawl(store, record.ref, change)
        frontier.set_state(record.id, state)
        changed.append(record.id)
    return changed


def _change(domain: str, state: CrawlState, former: frozenset[str], as_json: bool) -> None:
    """Change the state of a domain's crawls, and print which; exit 1 without one."""
    name = parse_domain(domain)
    changed = change_crawls(name, state, former)
    if as_json or changed:
        text = "\n".join(f"crawl {crawl_id} of {name} is {state}" for crawl_id in changed)
        print_result({"domain": name, "state": state, "crawls": changed}, text, as_json=as_json)
    else:
        typer.echo(f"{name} has no crawl that is {' or '.join(sorted(former))}", err=True)
    if not changed:
        raise typer.Exit(code=1)
