"""`perennial up` and `down`: private services and every process of the Procfile."""

from __future__ import annotations

import typer

from app import services
from app.services import processes
from config.settings import get_settings


def register(cli: typer.Typer) -> None:
    """Add the commands at the top level."""
    cli.command()(up)
    cli.command()(down)


def up() -> None:
    """Start private services where no URLs are given, then the Procfile's processes, until Ctrl-C."""
    services.up(get_settings())
    raise typer.Exit(processes.run())


def down() -> None:
    """Stop the private services; the processes stop with `perennial up` itself."""
    services.down(get_settings())
