"""`perennial topology`: declare what the code says, compare it with the broker, move a queue, or print it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from typing import Annotated

import typer
from amqp.exceptions import PreconditionFailed
from kombu import Queue

from app.broker.connection import connected
from app.broker.errors import TopologyDiffers
from app.broker.policies.base import Policy
from app.broker.policies.x_death import XDeath
from app.cli.mermaid import consumers_of, convention, search, to_mermaid
from app.coverart.project import COVER_ART
from app.services.procfile import procfile
from app.topology import migrate as care
from app.topology.check import Report
from app.topology.check import check as look
from app.topology.declare import all_queues, declare_all
from app.topology.findings import Finding
from app.topology.model import bindings_of
from app.topology.policies import art_policy, subscriber_policy
from app.topology.queues import art_queues, orchestrator_queues, searcher_queue
from config.routes import ORCHESTRATOR, SITE
from config.settings import Settings, get_settings

cli = typer.Typer(no_args_is_help=True, help="Exchanges, queues and bindings.")

#: Characters of a line.
_WIDTH = 118

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@cli.command()
def apply() -> None:
    """Declare every exchange, queue and binding on the broker; declaring again changes nothing."""
    settings = get_settings()
    with connected(settings.broker, timeout=settings.publish_timeout) as connection:
        try:
            count = declare_all(connection.channel(), settings)
        except PreconditionFailed as error:
            raise TopologyDiffers(f"{error.reply_text}; perennial topology check says what to do") from error
    typer.echo(f"{count} queues declared")


@cli.command()
def check(as_json: AsJson = False) -> None:
    """Compare the code with the broker, and say how to mend what differs; exit 1 on errors. Nothing is changed."""
    report = look(get_settings())
    if as_json:
        typer.echo(json.dumps(_fields(report)))
    else:
        for line in _lines(report):
            typer.echo(line)
    raise typer.Exit(1 if report.errors else 0)


@cli.command()
def migrate(queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]) -> None:
    """Give a queue the arguments of the code: messages aside, declared anew, messages back; stop its users first."""
    care.migrate(queue, get_settings(), typer.echo)


@cli.command()
def show() -> None:
    """Print every queue with its arguments and bindings."""
    for queue in all_queues(get_settings()):
        typer.echo(queue.name)
        for name, value in (queue.queue_arguments or {}).items():
            typer.echo(f"    {name} = {value}")
        for exchange, key in sorted(bindings_of(queue)):
            typer.echo(f"    <- {exchange} [{key}]" if key else f"    <- {exchange}")


@cli.command()
def mermaid(
    of: Annotated[
        str, typer.Argument(metavar="[OF]", help="`search`, `fixed_ttl` or `x_death`; by default, the site.")
    ] = "",
) -> None:
    """Print the topology of the site, of searching or of a retry policy, as a Mermaid flowchart, as in the README."""
    settings = get_settings()
    pictures: dict[str, Callable[[], str]] = {
        "": partial(site_picture, settings),
        "search": partial(search_picture, settings),
        **{policy.name: partial(convention, policy, work, worker=worker) for policy, work, worker in conventions()},
    }
    if of not in pictures:
        raise typer.BadParameter(f"{of!r}: expected one of {', '.join(filter(None, pictures))}, or nothing")
    typer.echo(pictures[of]())


def site_picture(settings: Settings) -> str:
    """Return the flowchart of the site group."""
    queues = [queue for queue in all_queues(settings) if queue.name.startswith(f"{SITE}.")]
    return to_mermaid(queues, consumers_of(procfile()))


def search_picture(settings: Settings) -> str:
    """Return the flowchart of the orchestrator and the searchers."""
    events, requests = orchestrator_queues(settings)
    return search(subscriber_policy(ORCHESTRATOR, settings), events, requests, searcher_queue("ID"))


def conventions() -> list[tuple[Policy, list[Queue], str]]:
    """Return the policies beside that of `site`, each on queues that are typical of it, and who consumes from them."""
    art, client = COVER_ART.prefix, XDeath("orders")
    return [(art_policy(art, Settings()), art_queues(art, Settings()), "indexer"), (client, [client.client], "client")]


def _fields(report: Report) -> dict[str, object]:
    return {
        "ok": not report.errors,
        "compared_by": "AMQP" if report.unseen else "management API",
        "unseen": report.unseen,
        "findings": [finding.as_json() for finding in report.findings],
    }


def _lines(report: Report) -> Iterable[str]:
    """Yield what a person reads: findings that are mended alike stand together, the sum at the end."""
    for _, alike in groupby(report.findings, key=_alike):
        yield from _told(list(alike))
    if report.unseen:
        yield f"compared by AMQP alone: {report.unseen}"
    ours, errors = report.ours, len(report.errors)
    notes = len(report.findings) - errors
    compared = f"{len(ours.queues)} queues, {len(ours.exchanges)} exchanges"
    compared += "" if report.unseen else f", {len(ours.bindings)} bindings"
    yield f"{compared} compared: {errors} error(s), {notes} note(s)"


def _alike(finding: Finding) -> tuple[str, ...]:
    return (finding.severity, finding.what, finding.mend, finding.expected)


def _told(findings: list[Finding]) -> Iterable[str]:
    first, single = findings[0], len(findings) == 1
    yield f"{first.severity:<6} {first.what}" if not single else f"{first.severity:<6} {first.where}: {first.what}"
    if not single:
        yield from _wrapped("where", _places(findings))
    if first.expected:
        yield from _wrapped("expected", first.expected)
    if first.found:
        yield from _wrapped("found", first.found if single else ", ".join(each.found for each in findings))
    yield from _wrapped("mend", first.mend)


def _places(findings: list[Finding]) -> str:
    """Return the places by kind: `queue a, b; binding c`."""
    kinds: dict[str, list[str]] = {}
    for finding in findings:
        kind, _, name = finding.where.partition(" ")
        kinds.setdefault(kind, []).append(name)
    return "; ".join(f"{kind} {', '.join(names)}" for kind, names in kinds.items())


def _wrapped(name: str, text: str) -> Iterable[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"       {name + ':':<10}",
        subsequent_indent=" " * 17,
        break_long_words=False,
        break_on_hyphens=False,
    )
