"""`perennial topology`: declare what the code says, or print it."""

from __future__ import annotations

import typer
from kombu import Connection

from app.cli.mermaid import bindings_of, consumers_of, to_mermaid
from app.services.processes import procfile
from app.topology import all_queues, declare_all
from config.settings import get_settings

topology = typer.Typer(no_args_is_help=True, help="Exchanges, queues and bindings.")


@topology.command()
def apply() -> None:
    """Declare every exchange, queue and binding on the broker; declaring again changes nothing."""
    settings = get_settings()
    with Connection(settings.broker, connect_timeout=settings.publish_timeout) as connection:
        count = declare_all(connection.channel(), settings)
    typer.echo(f"{count} queues declared")


@topology.command()
def show() -> None:
    """Print every queue with its arguments and bindings."""
    for queue in all_queues(get_settings()):
        typer.echo(queue.name)
        for name, value in (queue.queue_arguments or {}).items():
            typer.echo(f"    {name} = {value}")
        for exchange, key in sorted(bindings_of(queue)):
            typer.echo(f"    <- {exchange} [{key}]" if key else f"    <- {exchange}")


@topology.command()
def mermaid() -> None:
    """Print the topology as a Mermaid flowchart, the picture of the README."""
    typer.echo(to_mermaid(all_queues(get_settings()), consumers_of(procfile())))
