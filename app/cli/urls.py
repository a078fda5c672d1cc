"""`perennial explain`, `urls` and `broken-links`: what became of the URLs of a crawl."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from app.cli.printing import printable
from app.crawl.crawl_report import MAX_SOURCES, CrawlReport, broken_links, read_report
from app.crawl.explanation import Explanation, explain_url
from app.crawl.frontier import Frontier
from app.crawl.urls import parse_domain, parse_target
from app.crawl_record.entries import is_reason_code
from app.state.client import get_redis
from app.storage.open import open_store
from app.storage.store import ObjectStore
from config.settings import get_settings

cli = typer.Typer()

Domain = Annotated[str, typer.Argument(metavar="DOMAIN", help="The site's domain, or a URL of it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

#: Columns of `perennial urls --format csv`; JSON Lines have the same names.
COLUMNS = ("url", "state", "reason", "detail", "status", "at", "depth", "referrer")
#: A spreadsheet takes a cell that begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class Format(StrEnum):
    """The format of an export."""

    JSONL = "jsonl"
    CSV = "csv"


@cli.command()
def explain(url: Annotated[str, typer.Argument(help="A page.")], as_json: AsJson = False) -> None:
    """Explain the state of one URL: its reason in the crawl, and what is stored of it."""
    settings = get_settings()
    page = parse_target({"url": url}, scope=settings.scope, max_length=settings.max_url_length)
    found = explain_url(*_sources(), page, retry_ms=settings.retry_timeout_ms)
    typer.echo(json.dumps(found.as_json()) if as_json else printed(found))


@cli.command()
def urls(
    domain: Domain,
    form: Annotated[Format, typer.Option("--format", help="JSON Lines, or CSV with a line of names.")] = Format.JSONL,
    reason: Annotated[str, typer.Option(help="Only URLs with this reason code, such as `noindex` or `404`.")] = "",
) -> None:
    """Print every URL of a domain's latest crawl with its reason, as JSON Lines or CSV."""
    report = _report(domain)
    if reason and reason not in report.totals and not is_reason_code(reason):
        raise typer.BadParameter(f"--reason: {reason!r} is no reason code")
    rows = (row for row in report.rows() if not reason or row["reason"] == reason)
    if form is Format.JSONL:
        for row in rows:
            typer.echo(json.dumps(row))
        return
    writer = csv.DictWriter(sys.stdout, COLUMNS)
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})


@cli.command("broken-links")
def list_broken_links(domain: Domain, as_json: AsJson = False) -> None:
    """List the broken links of a domain's latest crawl, and the pages that have them. Exit 1 if there are any."""
    report = _report(domain)
    found = broken_links(report, _sources()[1])
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found]))
    else:
        for each in found:
            more = f"\n  and {each.number - MAX_SOURCES} more" if each.number > MAX_SOURCES else ""
            pages = "".join(f"\n  on {page}" for page in each.pages)
            detail = f" ({each.detail})" if each.detail else ""
            typer.echo(printable(f"{each.url}: {each.reason}{detail}") + pages + more)
        if not found:
            typer.echo(f"{report.record.domain}: no broken links in crawl {report.record.id}")
    raise typer.Exit(code=1 if found else 0)


def printed(found: Explanation) -> str:
    """Return an explanation as lines of text."""
    lines = [found.url, f"  canonical: {found.canonical}", f"  crawl: {found.crawled}"]
    if found.entry is not None:
        at = datetime.fromtimestamp(found.entry.at, UTC).isoformat(timespec="seconds")
        status = f", status {found.entry.status}" if found.entry.status else ""
        lines.append(f"  recorded: {found.entry.explanation}{status}, at {at}, depth {found.entry.depth}")
    if found.referrer:
        lines.append(f"  first linked from: {found.referrer}")
    return "\n".join(map(printable, [*lines, f"  stored: {found.stored}"]))


def _sources() -> tuple[Frontier, ObjectStore]:
    settings = get_settings()
    store = open_store(settings.store, endpoint_url=settings.s3_endpoint_url)
    return Frontier(get_redis(settings.redis), ttl=settings.crawl_ttl), store


def _report(domain: str) -> CrawlReport:
    """Return the report of a domain's latest crawl; exits for a domain without one."""
    name = parse_domain(domain, max_length=get_settings().max_url_length)
    report = read_report(*_sources(), name)
    if report is None:
        typer.echo(f"{name} has no crawl record", err=True)
        raise typer.Exit(code=2)
    return report


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
