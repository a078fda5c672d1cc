"""The `perennial` command: gathers the subcommands; exit 0 done, 1 failed, 2 wrong usage."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer
from pydantic import ValidationError

from app.broker.errors import ApplicationError
from app.cli import caa, config, dead, doctor, search, searchers, services, site, store, topology, up

cli = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, help="Index web sites; every failure lives in the broker."
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"perennial {version('perennial')}")
        raise typer.Exit


@cli.callback()
def options(
    shown: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version, and exit.")
    ] = False,
) -> None:
    """Take what stands before a subcommand."""
    del shown


cli.add_typer(services.cli, name="services")
cli.add_typer(topology.topology, name="topology")
cli.add_typer(dead.dead, name="dead")
cli.add_typer(caa.caa, name="caa")
cli.add_typer(store.cli, name="store")
cli.add_typer(config.config, name="config")
site.register(cli)
doctor.register(cli)
up.register(cli)
search.register(cli)
searchers.register(cli)


def main() -> None:
    """Run the command; an error of ours is one line on standard error and exit 1, a wrong setting exit 2."""
    try:
        cli()
    except ApplicationError as error:
        typer.echo(f"perennial: {error}", err=True)
        sys.exit(1)
    except ValidationError as error:
        for wrong in error.errors():
            name = ".".join(str(part) for part in wrong["loc"]).upper()
            typer.echo(
                f"perennial: {f'{name}: ' if name else ''}{wrong['msg'].removeprefix('Value error, ')}", err=True
            )
        sys.exit(2)


if __name__ == "__main__":
    main()
