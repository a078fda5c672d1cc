"""`perennial search-report`: searches without results and clicks of a site, added up over days."""

from __future__ import annotations

import json

import typer

from app.cli.arguments import AsJson, Domain
from app.cli.context import operations
from app.cli.printing import printable
from app.operations.site_view import searches

cli = typer.Typer()

#: Lines of each table, without --json.
_LINES = 20


@cli.command("search-report")
def search_report(domain: Domain, as_json: AsJson = False) -> None:
    """Report searches without results and clicks of a site that counts them."""
    found = searches(operations(), domain)
    name, since, sums = found.domain, found.since, found.sums
    if as_json:
        typer.echo(json.dumps(found.as_json(), ensure_ascii=False))
    elif not found.counted:
        typer.echo(f"{name}: not counted now; perennial site set {name} search_report=true", err=True)
    if not sums:
        if not as_json:
            typer.echo(f"{name}: nothing was counted since {since}", err=True)
        raise typer.Exit(code=1)
    if as_json:
        return
    totals = f"{sums.searches} searches, {sums.without_results} without results, {sums.clicks} clicks"
    typer.echo(f"{name}, since {since}: {totals}")
    typer.echo(f"Searches without results, of queries seen {found.threshold} times on a day:")
    for query, number in sums.queries.most_common(_LINES):
        typer.echo(f"{number:7}  {printable(query)}")
    typer.echo(f"Clicks, of queries and pages seen {found.threshold} times on a day:")
    for (query, url), number in sums.clicked.most_common(_LINES):
        typer.echo(f"{number:7}  {printable(query)}  {printable(url)}")
