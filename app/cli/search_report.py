"""`perennial search-report`: searches without results and clicks of a site, added up over days."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date, timedelta

import typer

from app.cli.arguments import AsJson, Domain
from app.cli.printing import printable
from app.crawl.urls import parse_domain
from app.sites.search_counter import THRESHOLD
from app.sites.search_reports import SearchReport, read_reports, today, total
from app.sites.stored import read_site
from app.storage.open import store_of
from config.settings import get_settings

cli = typer.Typer()

#: Days of a report, with today.
_DAYS = 30
#: Lines of each table, without --json.
_LINES = 20


@dataclass(frozen=True, slots=True)
class SearchReportTotal:
    """The sum of a site's reports from a day on, and whether the site is counted now."""

    domain: str
    since: date
    counted: bool
    days: int
    sums: SearchReport


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
    site = read_site(store, name)
    counted = site is not None and site.search_report
    found = SearchReportTotal(name, since, counted, len(reports), total(reports))
    _print_json(found) if as_json else _print(found)
    if not found.sums:
        raise typer.Exit(code=1)


def _print_json(found: SearchReportTotal) -> None:
    sums = json.loads(found.sums.to_json())
    del sums["version"]
    named = {"domain": found.domain, "since": found.since.isoformat(), "counted": found.counted, "days": found.days}
    typer.echo(json.dumps(named | sums, ensure_ascii=False))


def _print(found: SearchReportTotal) -> None:
    sums = found.sums
    if not found.counted:
        typer.echo(f"{found.domain}: not counted now; perennial site set {found.domain} search_report=true", err=True)
    if not sums:
        typer.echo(f"{found.domain}: nothing was counted since {found.since}", err=True)
        return
    typer.echo(
        f"{found.domain}, since {found.since}: {sums.searches} searches, {sums.without_results} without results,"
        f" {sums.clicks} clicks"
    )
    typer.echo(f"Searches without results, of queries seen {THRESHOLD} times on a day:")
    for query, number in sums.queries.most_common(_LINES):
        typer.echo(f"{number:7}  {printable(query)}")
    typer.echo(f"Clicks, of queries and pages seen {THRESHOLD} times on a day:")
    for (query, url), number in sums.clicked.most_common(_LINES):
        typer.echo(f"{number:7}  {printable(query)}  {printable(url)}")
