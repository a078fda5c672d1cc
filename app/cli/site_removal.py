"""`perennial site remove`, `block`, `unblock` and `rollback`: take a site, a page or a pack out of what is searched."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from app.cli.arguments import AsJson, Domain, DryRun, Why, Yes
from app.cli.context import operations
from app.cli.printing import confirm, print_result
from app.crawl.urls import parse_domain
from app.operations import removal
from app.pack.rollback import plan_rollback

OfSite = Annotated[str, typer.Option("--site", metavar="DOMAIN", help="The site, if it is not the host of the URL.")]
Url = Annotated[str, typer.Argument(help="A page.")]


def remove(domain: Domain, yes: Yes = False, why: Why = "", as_json: AsJson = False) -> None:
    """Delete all there is of a site, and drop its messages."""
    ops, name = operations(), parse_domain(domain)
    found = removal.holdings(ops, name)
    if not as_json:
        typer.echo(f"{name}: {found}" if found else f"{name}: there is nothing but messages, if any")
    if not yes:
        confirm(
            f"Delete all of {name}, its messages and dead letters?", without_terminal="without a terminal, add --yes"
        )
    [deleted], letters = removal.remove_sites(ops, [name], why=why)
    text = f"{name}: deleted, and {letters} dead letters; workers drop its messages, searchers follow"
    print_result({**asdict(deleted), "removed_dead_letters": letters}, text, as_json=as_json)


def block(url: Url, site: OfSite = "", why: Why = "", as_json: AsJson = False) -> None:
    """Remove one page from store, pack and searchers, and never request it again."""
    page = removal.block(operations(), url, site=site, why=why)
    text = "removed; searchers follow" if page.stored else "it was not stored"
    print_result(asdict(page), f"{page.url} blocked, and {text}", as_json=as_json)


def unblock(url: Url, site: OfSite = "", why: Why = "", as_json: AsJson = False) -> None:
    """Allow a blocked page again. The next crawl, or `perennial index --now`, indexes it."""
    page = removal.unblock(operations(), url, site=site, why=why)
    print_result(asdict(page), f"{page.url} is no longer blocked", as_json=as_json)


def rollback(domain: Domain, dry_run: DryRun = False, yes: Yes = False, why: Why = "", as_json: AsJson = False) -> None:
    """Serve the pack again that a site had before its last crawl."""
    ops, name = operations(), parse_domain(domain)
    plan = plan_rollback(ops.store, name)
    counts = {"serves": plan.former.generation, "replaces": plan.present.generation, "fetched": plan.fetched}
    if dry_run:
        print_result({"domain": name, **counts}, f"{name}: would serve {plan}", as_json=as_json)
        return
    if not yes:
        confirm(f"{name}: serve {plan}?", without_terminal="without a terminal, add --yes")
    generation = removal.roll_back(ops, plan, why=why).generation
    text = (
        f"{name}: serves {plan}; searchers follow\n"
        "The next pack has the stored pages as they are: pause the site until its settings are right, or block pages"
    )
    print_result({"domain": name, "generation": generation, **counts}, text, as_json=as_json)
