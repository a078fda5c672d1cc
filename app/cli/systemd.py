"""`perennial systemd`: units for machines whose processes systemd runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.private_services.systemd import write_units
from config.settings import get_settings

cli = typer.Typer()


@cli.command()
def systemd(
    directory: Annotated[Path, typer.Option(help="Folder for the units.")] = Path("/etc/systemd/system"),
) -> None:
    """Write systemd units of the Procfile's processes, and a target that starts all of them."""
    for file in write_units(get_settings(), directory):
        typer.echo(str(file))
