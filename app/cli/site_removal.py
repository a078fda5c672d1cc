"""`perennial site remove`, `block` and `unblock`: take a site, or one page of it, out of store, packs and searchers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from app.cli.arguments import AsJson, Domain, Why, Yes
from app.cli.context import operations
from app.cli.printing import confirm, print_result
from app.crawl.urls import parse_domain
from app.operations import removal

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
