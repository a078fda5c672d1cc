"""`perennial explain`, `urls` and `broken-links`: states and reasons of the URLs of a crawl."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from app.broker.errors import InvalidMessage
from app.cli.arguments import AsJson, Domain
from app.cli.context import operator_context
from app.cli.printing import iso, print_json, print_result, printable
from app.crawl.reports.crawl_report import MAX_SOURCES, Format, broken_links, export_urls
from app.crawl.reports.explanation import Explanation
from app.operations import crawls

cli = typer.Typer()


@cli.command()
def explain(url: Annotated[str, typer.Argument(help="A page.")], as_json: AsJson = False) -> None:
    """Explain one URL: its reason in the crawl, and what is stored of it."""
    found = crawls.explain(operator_context(), url)
    print_result(found.as_json(), printed(found), as_json=as_json)


@cli.command()
def urls(
    domain: Domain,
    form: Annotated[Format, typer.Option("--format", help="JSON Lines, or CSV with a line of names.")] = Format.JSONL,
    reason: Annotated[str, typer.Option(help="Only URLs with this reason code, such as `noindex` or `404`.")] = "",
) -> None:
    """Print every URL of a domain's latest crawl with its reason."""
    report = crawls.latest(operator_context(), domain)
    try:
        pieces = export_urls(report, form, reason=reason)
    except InvalidMessage as error:
        raise typer.BadParameter(f"--{error}") from error
    for piece in pieces:
        sys.stdout.write(piece)


@cli.command("broken-links")
def list_broken_links(domain: Domain, as_json: AsJson = False) -> None:
    """List a domain's broken links, and the pages that have them. Exit 1 if there are any."""
    ops = operator_context()
    report = crawls.latest(ops, domain)
    found = broken_links(report, ops.store)
    if as_json:
        print_json(map(asdict, found.read()))
    else:
        for each in found.read():
            more = f"\n  and {each.number - MAX_SOURCES} more" if each.number > MAX_SOURCES else ""
            pages = "".join(f"\n  on {page}" for page in each.pages)
            detail = f" ({each.detail})" if each.detail else ""
            typer.echo(printable(f"{each.url}: {each.reason}{detail}") + pages + more)
        if not found.total:
            typer.echo(f"{report.record.domain}: no broken links in crawl {report.record.id}")
    raise typer.Exit(code=1 if found.total else 0)


def printed(found: Explanation) -> str:
    """Return an explanation as lines of text."""
    lines = [found.url, f"  canonical: {found.canonical}", f"  crawl: {found.crawled}"]
    if found.entry is not None:
        at = iso(found.entry.at)
        status = f", status {found.entry.status}" if found.entry.status else ""
        lines.append(f"  recorded: {found.entry.explanation}{status}, at {at}, depth {found.entry.depth}")
    if found.referrer:
        lines.append(f"  first linked from: {found.referrer}")
    return "\n".join(map(printable, [*lines, f"  stored: {found.stored}"]))
