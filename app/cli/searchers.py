"""`perennial searchers`: the searchers, and the packs that each one serves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from app.cli.arguments import AsJson
from app.cli.printing import print_lines, printable, short
from app.cluster.client.cluster import ClusterSearchClient
from app.cluster.protocol import PackRoute, Routes, SearcherStatus
from app.text.phrases import listed
from config.settings import get_settings

cli = typer.Typer()


@cli.command()
def searchers(as_json: AsJson = False) -> None:
    """Show searchers and packs. Exit 1 if the orchestrator is unreachable or a pack is unassigned."""
    with closing(ClusterSearchClient.of(get_settings())) as client:
        routes = client.routes()
    console = Console(highlight=False)
    if as_json:
        typer.echo(json.dumps(asdict(routes)))
    elif console.is_terminal:
        show(routes, console)
    else:
        print_lines(table_rows(routes))
    raise typer.Exit(0 if all(route.searchers for route in routes.routes) else 1)


def table_rows(routes: Routes) -> Iterator[Sequence[object]]:
    """Yield a row for each searcher and then for each pack, for programs.

    Of a searcher: "searcher", id, free MB, capacity in MB, packs, loads in progress, seconds since its last report,
    "leaving" or nothing. Of a pack: "pack", domain, pages, time of its build, generation, MB, copies of the newest
    generation, missing copies, diagnostics.
    """
    for node in routes.searchers:
        numbers = (node.free_space, node.capacity, node.packs, len(node.loading), f"{node.age:.1f}")
        yield ("searcher", node.searcher_id, *numbers, "leaving" if node.leaving else "")
    for route in routes.routes:
        version = (route.pages, route.built_at, route.generation, route.size_mb)
        yield ("pack", route.domain, *version, _newest_copies(route), route.missing, route.why)


def show(routes: Routes, console: Console) -> None:
    """Print tables and diagnostics for people."""
    if not routes.settled:
        console.print("The orchestrator has just started and still collects the searchers' reports.", style="yellow")
    if not routes.searchers:
        console.print("No searcher is running; perennial up starts them.", style="yellow")
    else:
        console.print(_searchers_table(routes.searchers))
    console.print()
    if not routes.routes:
        console.print("Nothing is indexed yet; perennial index URL --crawl starts a crawl.")
    else:
        console.print(_packs_table(routes.routes))
    domains_by_reason: dict[str, list[str]] = {}
    for route in routes.routes:
        if route.why:
            domains_by_reason.setdefault(printable(route.why), []).append(printable(route.domain))
    for reason, domains in domains_by_reason.items():
        console.print(Text(f"\n{listed(domains)}: {reason}", "yellow"))


def _searchers_table(nodes: Sequence[SearcherStatus]) -> Table:
    numbers = (Column(name, no_wrap=True, justify="right") for name in ("free MB", "of MB", "packs", "reported"))
    table = Table(Column("searcher", no_wrap=True), *numbers, "", box=None, pad_edge=False)
    for node in nodes:
        state = ([f"loads {len(node.loading)}"] if node.loading else []) + (["leaves"] if node.leaving else [])
        table.add_row(
            short(node.searcher_id),
            *(f"{node.free_space:,}", f"{node.capacity:,}", f"{node.packs:,}", f"{node.age:.1f} s ago"),
            ", ".join(state),
        )
    return table


def _packs_table(routes: Sequence[PackRoute]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("domain", overflow="fold")
    for name in ("pages", "built (UTC)", "version", "MB", "copies", "missing"):
        table.add_column(name, no_wrap=True, justify="left" if name == "built (UTC)" else "right")
    for route in routes:
        try:
            built = f"{datetime.fromisoformat(route.built_at):%Y-%m-%d %H:%M}"
        except ValueError:
            built = printable(route.built_at)
        older = len(route.searchers) - _newest_copies(route)
        copies = f"{_newest_copies(route)}{f' + {older} older' if older else ''}"
        table.add_row(
            Text(printable(route.domain)),
            *(f"{route.pages:,}", built, f"{route.generation:,}", f"{route.size_mb:,}"),
            Text(copies, "" if route.searchers else "bold red"),
            Text(str(route.missing or ""), "yellow"),
        )
    return table


def _newest_copies(route: PackRoute) -> int:
    """Return the number of copies of the newest generation; an orchestrator that does not report it has only those."""
    return route.newest or len(route.searchers)
