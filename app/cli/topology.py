"""`perennial topology`: declare the topology, compare it with the broker, migrate a queue, or print it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from operator import attrgetter
from typing import Annotated

import typer

from app.broker.connection import connected
from app.broker.errors import MigrationRefused, TopologyDiffers
from app.cli.arguments import AsJson
from app.cli.printing import print_result
from app.messages.circuit_breakers import breakers_by_queue
from app.redis_state.client import get_quick_redis
from app.topology import migrate as migration
from app.topology.check import check_topology
from app.topology.compare import TopologyFinding
from app.topology.declare import all_queues, declare_all
from app.topology.model import bindings_of
from config.settings import get_settings

cli = typer.Typer(no_args_is_help=True, help="Exchanges, queues and bindings.")

#: Characters of a line.
_WIDTH = 118


@cli.command()
def apply() -> None:
    """Declare every exchange, queue and binding on the broker."""
    settings = get_settings()
    with connected(settings.broker) as connection:
        refusals = declare_all(connection, settings)
    typer.echo(f"{len(all_queues(settings)) - len(refusals)} queues declared")
    for refusal in refusals:
        typer.echo(f"queue {refusal.queue.name} refused: {refusal}", err=True)
    if any(refusal.differs for refusal in refusals):
        raise TopologyDiffers("`perennial topology check` names the remedy")
    if refusals:
        raise typer.Exit(1)


@cli.command()
def check(as_json: AsJson = False) -> None:
    """Compare the code with the broker and print the remedy of each difference; exit 1 on errors."""
    report = check_topology(get_settings())
    lines: list[str] = []
    # Findings with the same problem and remedy are printed together.
    for _, alike in groupby(report.findings, key=attrgetter("severity", "problem", "remedy", "expected")):
        lines += _finding_lines(list(alike))
    ours, errors = report.ours, len(report.errors)
    compared = f"{len(ours.queues)} queues, {len(ours.exchanges)} exchanges, {len(ours.bindings)} bindings"
    lines.append(f"{compared} compared: {errors} error(s), {len(report.findings) - errors} note(s)")
    result = {"ok": not report.errors, "findings": [asdict(finding) for finding in report.findings]}
    print_result(result, "\n".join(lines), as_json=as_json)
    raise typer.Exit(1 if report.errors else 0)


@cli.command()
def migrate(queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]) -> None:
    """Give a queue the arguments of the code: move its messages aside, declare it, move them back.

    Stop its consumers and publishers first.
    """
    settings = get_settings()
    for breaker in breakers_by_queue(settings, get_quick_redis(settings.redis)).get(queue, ()):
        # While it is open, workers do not consume the queue, and do not show at the broker.
        if breaker.seconds_open() > 0:
            raise MigrationRefused(
                f"{queue} may have workers that wait for the circuit breaker of the {breaker.service}: "
                "stop them, and run this again when it is closed"
            )
    migration.migrate(queue, settings, typer.echo)


@cli.command()
def show() -> None:
    """Print every queue with its arguments and bindings."""
    for queue in all_queues(get_settings()):
        typer.echo(queue.name)
        for name, value in (queue.queue_arguments or {}).items():
            typer.echo(f"    {name} = {value}")
        for exchange, key in sorted(bindings_of(queue)):
            typer.echo(f"    <- {exchange} [{key}]" if key else f"    <- {exchange}")


def _finding_lines(findings: Sequence[TopologyFinding]) -> Iterable[str]:
    """Yield the lines of findings that differ in their subjects only."""
    first = findings[0]
    if len(findings) == 1:
        yield f"{first.severity:<6} {first.subject}: {first.problem}"
        found = first.found
    else:
        yield f"{first.severity:<6} {first.problem}"
        names_by_kind: dict[str, list[str]] = {}
        for finding in findings:
            kind, _, name = finding.subject.partition(" ")
            names_by_kind.setdefault(kind, []).append(name)
        yield from _wrapped("where", "; ".join(f"{kind} {', '.join(names)}" for kind, names in names_by_kind.items()))
        found = ", ".join(finding.found for finding in findings)
    if first.expected:
        yield from _wrapped("expected", first.expected)
    if first.found:
        yield from _wrapped("found", found)
    yield from _wrapped("remedy", first.remedy)


def _wrapped(name: str, text: str) -> Iterable[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"       {name + ':':<10}",
        subsequent_indent=" " * 17,
        break_long_words=False,
        break_on_hyphens=False,
    )
