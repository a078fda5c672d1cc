"""`perennial up`, `down` and `systemd`: private services and every process of the Procfile."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from app import private_services as services
from app.cli.printing import print_json
from app.operations.doctor.checks import EVENT_QUEUE, outages
from app.processes import procfile
from app.processes.process_states import current_states
from app.processes.systemd import write_units
from config.settings import get_settings

cli = typer.Typer()


@cli.command()
def up() -> None:
    """Start private services where no URLs are given, and all processes, until Ctrl-C or `down`."""
    settings = get_settings()
    with procfile.only_one(settings.data_dir) as left:
        for each in left:
            typer.echo(f"stopped {each.name}, which a killed `perennial up` had left running")
        procfile.require_free_addresses(settings)
        services.up(settings)
        typer.echo(f"search page: http://{settings.web_address}/")
        login = "FLOWER_BASIC_AUTH" if settings.flower_basic_auth.get_secret_value() else settings.flower_login_file
        typer.echo(f"Flower:      http://{settings.flower_address}/ (login: {login})")
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


@cli.command()
def systemd(
    processes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROCESS]...", help="Those of this machine, such as `worker searcher`. Default: all."),
    ] = None,
    directory: Annotated[Path, typer.Option(help="Folder for the units.")] = Path("/etc/systemd/system"),
) -> None:
    """Write systemd units of the Procfile's processes, and a target of all."""
    for file in write_units(get_settings(), directory, processes or ()):
        typer.echo(str(file))


def print_processes(*, as_json: bool) -> bool:
    """Print the state of each process of `perennial up`; return whether it runs, and none of them stays down.

    Then print what waits in MusicBrainz's event queue, and on standard error what an operator must look at.
    """
    settings = get_settings()
    states = current_states(settings.data_dir)
    if as_json:
        print_json(map(asdict, states))
    for each in () if as_json else states:
        crashes = f"{each.crashes} crash{'' if each.crashes == 1 else 'es'} in a row, exit code {each.exit_code}"
        details = [f"pid {each.id.pid}"] if each.id else []
        details += [crashes] if each.crashes else []
        typer.echo(f"{each.name:<12} {each.state:<10} {', '.join(details)}".rstrip())
    if not states and not as_json:
        typer.echo("perennial up does not run here")
    has_events = bool(settings.art_event_queue_url.get_secret_value())
    for result in outages(settings):
        if result.status != "ok":
            typer.echo(result.text, err=True)
        elif result.check == EVENT_QUEUE and has_events and not as_json:
            typer.echo(result.text)
    return bool(states) and not any(each.state == "down" for each in states)
