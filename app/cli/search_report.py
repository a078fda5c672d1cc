"""`perennial search-report`: searches without results and clicks of a site, added up over days."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from app.cli.arguments import AsJson, Domain
from app.cli.context import operator_context
from app.cli.printing import printable
from app.operations.site_view import searches

cli = typer.Typer()

#: Lines of each table, without --json.
_LINES = 20


@cli.command("search-report")
def search_report(domain: Domain, as_json: AsJson = False) -> None:
    """Report a site's searches without results, and clicks."""
    found = searches(operator_context(), domain)
    name, since = found.domain, found.since
    is_empty = not (found.searches or found.clicks)
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        raise typer.Exit(code=1 if is_empty else 0)
    if not found.counted:
        typer.echo(f"{name}: not counted now; perennial site set {name} search_report=true", err=True)
    if is_empty:
        typer.echo(f"{name}: nothing was counted since {since}", err=True)
        raise typer.Exit(code=1)
    totals = f"{found.searches} searches, {found.without_results} without results, {found.clicks} clicks"
    typer.echo(f"{name}, since {since}: {totals}")
    typer.echo(f"Searches without results, of queries seen {found.threshold} times on a day:")
    for query, number in list(found.queries.items())[:_LINES]:
        typer.echo(f"{number:7}  {printable(query)}")
    typer.echo(f"Clicks, of queries and pages seen {found.threshold} times on a day:")
    for each in found.clicked[:_LINES]:
        typer.echo(f"{each['clicks']:7}  {printable(each['query'])}  {printable(each['url'])}")
