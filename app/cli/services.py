"""`perennial services`: the private RabbitMQ and Redis of this checkout."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from app import private_services as services
from app.cli.arguments import AsJson
from app.cli.printing import print_json
from app.errors import ServicesError
from app.operations.broker_accounts import make_accounts
from app.processes.process_states import current_states
from config.settings import get_settings

cli = typer.Typer(no_args_is_help=True, help="The private RabbitMQ and Redis of this checkout.")


@cli.command()
def up(*, as_json: AsJson = False) -> None:
    """Start what is not given by BROKER_URL or REDIS_URL and does not run yet."""
    services.up(get_settings())
    _show(services.status(get_settings()), as_json=as_json)


@cli.command()
def down(*, as_json: AsJson = False) -> None:
    """Stop the private services; their data stay."""
    if current_states(get_settings().data_dir):
        raise ServicesError("`perennial up` runs here, and would start them again: use `perennial down`")
    services.down(get_settings())
    _show(services.status(get_settings()), as_json=as_json)


@cli.command()
def status(*, as_json: AsJson = False) -> None:
    """Say what runs and where; exit 1 when a private service is down."""
    found = services.status(get_settings())
    _show(found, as_json=as_json)
    raise typer.Exit(code=any(service.state == "down" for service in found))


@cli.command()
def accounts(
    directory: Annotated[
        Path | None,
        typer.Option(help="Folder for their passwords; `accounts` below the data folder if it is left out."),
    ] = None,
) -> None:
    """Make an account of the broker, in a file, for each kind of process."""
    settings = get_settings()
    for file in make_accounts(settings, directory or settings.data_dir / "accounts"):
        typer.echo(str(file))


def _show(found: list[services.ServiceStatus], *, as_json: bool) -> None:
    if as_json:
        print_json(map(asdict, found))
        return
    for service in found:
        typer.echo(f"{service.name:<9} {service.state:<6} {service.address}".rstrip())
