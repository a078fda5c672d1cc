"""`perennial searchers`: who answers searches, and where each pack is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.printing import print_lines, printable, short
from app.cluster.client.cluster import ClusterSearchClient
from app.cluster.protocol import PackRoute, Routes, SearcherStatus
from app.errors import SearchUnavailable
from config.settings import get_settings

cli = typer.Typer()

#: The header of remarks, of which there mostly are none.
_NO_NAME = ""
#: Domains that are named of those with the same trouble.
_NAMED = 5


@cli.command()
def searchers(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show the searchers and where each pack is. Exit 1 when nobody says so, or a pack is on no searcher."""
    with closing(ClusterSearchClient.of(get_settings())) as finder:
        try:
            routes = finder.routes()
        except SearchUnavailable as error:
            typer.echo(f"perennial: {error}\nIs the orchestrator running? perennial up starts it", err=True)
            raise typer.Exit(1) from None
    console = Console(highlight=False)
    if as_json:
        typer.echo(json.dumps(asdict(routes)))
    elif console.is_terminal:
        show(routes, console)
    else:
        print_lines((*_node_lines(routes), *_route_lines(routes)))
    raise typer.Exit(0 if all(route.searchers for route in routes.routes) else 1)


def _node_lines(routes: Routes) -> Iterator[Sequence[object]]:
    """Yield for programs: searcher, id, MB free, MB in all, packs, loads under way, seconds since it was heard of."""
    for node in routes.searchers:
        numbers = (node.free_space, node.capacity, len(node.domains), len(node.loading), f"{node.age:.1f}")
        yield ("searcher", node.searcher_id, *numbers, "leaving" if node.leaving else "")


def _route_lines(routes: Routes) -> Iterator[Sequence[object]]:
    """Yield for programs: pack, domain, pages, built, generation, MB, copies, copies missing, why."""
    for route in routes.routes:
        told = (route.pages, route.built_at, route.generation, route.size_mb, _newest(route), route.missing, route.why)
        yield ("pack", route.domain, *told)


def show(routes: Routes, console: Console) -> None:
    """Print tables for people."""
    if not routes.settled:
        console.print("The orchestrator has just begun; it still gathers what there is.", style="yellow")
    if not routes.searchers:
        console.print("No searcher is running; perennial up starts them.", style="yellow")
    else:
        console.print(_nodes_table(routes.searchers))
    console.print()
    if not routes.routes:
        console.print("Nothing is indexed yet; perennial index URL --crawl begins.")
    else:
        console.print(_routes_table(routes.routes))
    for line in _obstacles(routes.routes):
        console.print(Text(f"\n{line}", "yellow"))


def _nodes_table(nodes: Sequence[SearcherStatus]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("searcher", no_wrap=True)
    for name in ("free MB", "of MB", "packs", "heard"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column(_NO_NAME)
    for node in nodes:
        row = (f"{node.free_space:,}", f"{node.capacity:,}", f"{len(node.domains):,}", f"{node.age:.1f} s ago")
        table.add_row(short(node.searcher_id), *row, _doing(node))
    return table


def _doing(node: SearcherStatus) -> str:
    loads = [f"loads {len(node.loading)}"] if node.loading else []
    return ", ".join([*loads, *(["leaves"] if node.leaving else [])])


def _routes_table(routes: Sequence[PackRoute]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("domain", overflow="fold")
    for name in ("pages", "built (UTC)", "version", "MB", "copies", "missing"):
        table.add_column(name, no_wrap=True, justify="left" if name == "built (UTC)" else "right")
    for route in routes:
        numbers = (f"{route.pages:,}", _minute(route.built_at), f"{route.generation:,}", f"{route.size_mb:,}")
        table.add_row(Text(printable(route.domain)), *numbers, _copies(route), Text(str(route.missing or ""), "yellow"))
    return table


def _copies(route: PackRoute) -> Text:
    """Return how many searchers have it; with those that have an older version, while they have."""
    older = len(route.searchers) - _newest(route)
    return Text(f"{_newest(route)}{f' + {older} older' if older else ''}", "" if route.searchers else "bold red")


def _obstacles(routes: Sequence[PackRoute]) -> Iterator[str]:
    """Yield what stands against copies that are missing, a line for all domains of which the same is told."""
    told: dict[str, list[str]] = {}
    for route in routes:
        if route.why:
            told.setdefault(printable(route.why), []).append(printable(route.domain))
    for why, domains in told.items():
        more = f" and {len(domains) - _NAMED} more" if len(domains) > _NAMED else ""
        yield f"{', '.join(domains[:_NAMED])}{more}: {why}"


def _newest(route: PackRoute) -> int:
    return route.newest or len(route.searchers)


def _minute(built_at: str) -> str:
    try:
        return f"{datetime.fromisoformat(built_at):%Y-%m-%d %H:%M}"
    except ValueError:
        return printable(built_at)
