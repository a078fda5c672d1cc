"""`perennial topology`: declare what the code says, or print it."""

from __future__ import annotations

import typer
from kombu import Connection, Queue

from app.amqp.declare import declare_all
from config.settings import get_settings
from config.topology import all_queues

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
        for exchange, key in sorted(_bindings(queue)):
            typer.echo(f"    <- {exchange} [{key}]" if key else f"    <- {exchange}")


@topology.command()
def mermaid() -> None:
    """Print the topology as a Mermaid flowchart, the picture of the README."""
    typer.echo(to_mermaid(all_queues(get_settings())))


def to_mermaid(queues: list[Queue]) -> str:
    """Return a flowchart: work queues, delay queues as one node a group, dead set; dashed lines are dead-lettering."""
    work = [queue for queue in queues if ".delay." not in queue.name and queue.name != "site.dead"]
    lines = ["flowchart LR", '    producers([producers]) -->|"type"| site{{site}}']
    for queue in work:
        node = queue.name.replace(".", "_")
        keys = ", ".join(
            sorted({key for _, key in _bindings(queue)} - {queue.name} - {queue.name.split(".")[1].upper()})
        )
        lines.append(f'    site -->|"{keys}"| {node}[["{queue.name}"]]')
        lines.append(
            f"    {node} --> worker([worker])" if queue.name != "site.pack" else f"    {node} --> packer([packer])"
        )
    lines += [
        '    worker -->|"failed, postponed"| delay{{"site.delay.&lt;ms&gt;"}} --> wait[["site.delay.&lt;ms&gt;"]]',
        '    packer -->|"failed"| delay',
        '    wait -.->|"after ms"| site',
        '    worker -->|"spent"| dead{{site.dead}} --> deadset[["site.dead"]]',
        '    packer -->|"spent"| dead',
        '    site -.->|"no such key"| dead',
        '    packer -->|"update"| events{{perennial.events}}',
        "    classDef waiting fill:#fdf3d8,stroke:#b8860b,color:#000",
        "    classDef failed fill:#f8dddd,stroke:#a33,color:#000",
        "    class delay,wait waiting",
        "    class dead,deadset failed",
    ]
    return "\n".join(lines)


def _bindings(queue: Queue) -> list[tuple[str, str]]:
    if queue.bindings:
        return [(each.exchange.name, each.routing_key) for each in queue.bindings]
    return [(queue.exchange.name, queue.routing_key or "")]
