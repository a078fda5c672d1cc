"""`perennial up` and `down`: private services and every process of the Procfile."""

from __future__ import annotations

import typer

from app import services
from app.services import procfile
from config.settings import get_settings

cli = typer.Typer()


@cli.command()
def up() -> None:
    """Start private services where no URLs are given, then the Procfile's processes, until Ctrl-C or `down`."""
    settings = get_settings()
    with procfile.only_one(settings.data_dir):
        services.up(settings)
        typer.echo(f"search page: http://{settings.web_host}:{settings.web_port}/")
        login = "FLOWER_BASIC_AUTH" if settings.flower_basic_auth.get_secret_value() else settings.flower_login_file
        typer.echo(f"Flower:      http://{settings.flower_host}:{settings.flower_port}/ (login: {login})")
        status = procfile.run()
    raise typer.Exit(status)


@cli.command()
def down() -> None:
    """Stop the processes of `perennial up`, then the private services; their data stay."""
    settings = get_settings()
    if procfile.stop(settings.data_dir):
        typer.echo("processes stopped")
    services.down(settings)
    typer.echo("services stopped")
