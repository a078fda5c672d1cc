"""`perennial search-report`: searches without results and clicks of a site, added up over days."""

from __future__ import annotations

import json
from datetime import timedelta

import typer

from app.cli.arguments import AsJson, Domain
from app.cli.printing import printable
from app.crawl.urls import parse_domain
from app.sites.search_counter import THRESHOLD
from app.sites.search_reports import read_reports, today, total
from app.sites.stored import read_site
from app.storage.open import store_of
from config.settings import get_settings

cli = typer.Typer()

#: Days of a report, with today.
_DAYS = 30
#: Lines of each table, without --json.
_LINES = 20


@cli.command("search-report")
def search_report(
    domain: Domain,
    as_json: AsJson = False,
) -> None:
    """Report searches without results and clicks of a site that counts them."""
    settings = get_settings()
    name = parse_domain(domain)
    store = store_of(settings)
    since = today() - timedelta(days=_DAYS - 1)
    reports = [report for _, report in read_reports(store, name, since=since)]
    site, sums = read_site(store, name), total(reports)
    counted = site is not None and site.search_report
    if as_json:
        counts = {field: value for field, value in json.loads(sums.to_json()).items() if field != "version"}
        about = {"domain": name, "since": since.isoformat(), "counted": counted, "days": len(reports)}
        typer.echo(json.dumps(about | counts, ensure_ascii=False))
    elif not counted:
        typer.echo(f"{name}: not counted now; perennial site set {name} search_report=true", err=True)
    if not sums:
        if not as_json:
            typer.echo(f"{name}: nothing was counted since {since}", err=True)
        raise typer.Exit(code=1)
    if as_json:
        return
    totals = f"{sums.searches} searches, {sums.without_results} without results, {sums.clicks} clicks"
    typer.echo(f"{name}, since {since}: {totals}")
    typer.echo(f"Searches without results, of queries seen {THRESHOLD} times on a day:")
    for query, number in sums.queries.most_common(_LINES):
        typer.echo(f"{number:7}  {printable(query)}")
    typer.echo(f"Clicks, of queries and pages seen {THRESHOLD} times on a day:")
    for (query, url), number in sums.clicked.most_common(_LINES):
        typer.echo(f"{number:7}  {printable(query)}  {printable(url)}")
