"""`perennial searchers`: the searchers, and the packs that each one serves."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict

import typer
from rich.console import Console
from rich.text import Text

from app.cli.arguments import AsJson
from app.cli.printing import print_lines, printable
from app.cli.tables import table
from app.cluster.client.cluster import ClusterSearchClient
from app.cluster.protocol import PackRoute, Routes, SearcherStatus
from app.text.humanize import listed
from config.settings import get_settings

cli = typer.Typer()

_NUMBERS = ("free MB", "of MB", "packs", "loads", "reported", "pages", "generation", "MB", "copies", "missing")


@cli.command()
def searchers(as_json: AsJson = False) -> None:
    """Show searchers and packs. Exit 1 if the orchestrator is unreachable or a pack is unassigned."""
    with closing(ClusterSearchClient.of(get_settings(), reconnects=False)) as client:
        routes = client.routes()
    console = Console(highlight=False)
    if as_json:
        typer.echo(json.dumps(asdict(routes)))
    elif console.is_terminal:
        show(routes, console)
    else:
        print_lines(("searcher", *searcher_row(node).values()) for node in routes.searchers)
        print_lines(("pack", *pack_row(route).values(), route.unplaced_reason) for route in routes.routes)
    raise typer.Exit(0 if all(route.searchers for route in routes.routes) else 1)


def searcher_row(node: SearcherStatus) -> dict[str, object]:
    """Return the columns of a searcher: `loads` in progress, and seconds since its last report."""
    return {
        "searcher": node.searcher_id,
        "free MB": node.free_space,
        "of MB": node.capacity,
        "packs": node.packs,
        "loads": len(node.loading),
        "reported": f"{node.age:.1f}",
        "state": "leaving" if node.leaving else "",
    }


def pack_row(route: PackRoute) -> dict[str, object]:
    """Return the columns of a pack: the copies are of the newest generation."""
    return {
        "pack": route.domain,
        "pages": route.pages,
        "built": route.built_at,
        "generation": route.generation,
        "MB": route.size_mb,
        "copies": route.newest,
        "missing": route.missing,
    }


def show(routes: Routes, console: Console) -> None:
    """Print tables and diagnostics for people."""
    if not routes.ready:
        console.print("The orchestrator has just started and still collects the searchers' reports.", style="yellow")
    if not routes.searchers:
        console.print("No searcher is running; perennial up starts them.", style="yellow")
    else:
        console.print(table(list(map(searcher_row, routes.searchers)), whole=(), numbers=_NUMBERS))
    console.print()
    if not routes.routes:
        console.print("Nothing is indexed yet; perennial index URL --crawl starts a crawl.")
    else:
        console.print(table(list(map(pack_row, routes.routes)), whole=("built",), numbers=_NUMBERS))
    domains_by_reason: dict[str, list[str]] = {}
    for route in routes.routes:
        if route.unplaced_reason:
            domains_by_reason.setdefault(printable(route.unplaced_reason), []).append(printable(route.domain))
    for reason, domains in domains_by_reason.items():
        console.print(Text(f"\n{listed(domains)}: {reason}", "yellow"))
