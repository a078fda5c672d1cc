"""`perennial pause`, `resume`, `cancel` and `repair`: what an operator does to crawls."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from app.cli.arguments import AsJson, Domain, Why
from app.cli.context import operator_context
from app.cli.printing import print_json, print_result
from app.crawl.record.crawls import CrawlState
from app.crawl.urls import parse_domain
from app.errors import ActRefused
from app.operations import crawls

cli = typer.Typer()


@cli.command()
def pause(domain: Domain, why: Why = "", as_json: AsJson = False) -> None:
    """Pause a domain's crawls: open pages go back to their backlogs."""
    _change(domain, "paused", why, as_json)


@cli.command()
def resume(domain: Domain, why: Why = "", as_json: AsJson = False) -> None:
    """Resume a domain's paused crawls."""
    _change(domain, "running", why, as_json)


@cli.command()
def cancel(domain: Domain, why: Why = "", as_json: AsJson = False) -> None:
    """Cancel a domain's crawls for good. Stored pages are packed."""
    _change(domain, "cancelled", why, as_json)


@cli.command()
def repair(
    domain: Annotated[str, typer.Argument(metavar="[DOMAIN]", help="The site's domain; without it, all sites.")] = "",
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Compare the store with Redis, and begin again what is missing there."""
    actions = crawls.repair(operator_context(), domain, why=why)
    if as_json:
        print_json({"domain": action.domain, "action": action.text} for action in actions)
        return
    typer.echo("\n".join(map(str, actions)) or "nothing was missing")


def _change(domain: str, state: CrawlState, why: str, as_json: bool) -> None:
    """Change the state of a domain's crawls, and print which; exit 1 without one."""
    done, refusal = crawls.ChangedCrawls(domain=parse_domain(domain), state=state, crawls=[]), ""
    try:
        done = crawls.change_crawls(operator_context(), domain, state, why=why)
    except ActRefused as error:
        refusal = str(error)
    if as_json or done.crawls:
        text = "\n".join(f"crawl {crawl_id} of {done.domain} is {state}" for crawl_id in done.crawls)
        print_result(asdict(done), text, as_json=as_json)
    else:
        typer.echo(refusal, err=True)
    if not done.crawls:
        raise typer.Exit(code=1)
