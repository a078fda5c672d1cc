"""`perennial up` and `down`: private services and every process of the Procfile."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict

import typer
from amqp.exceptions import NotFound
from redis import RedisError

from app import private_services as services
from app.broker.connection import connected
from app.broker.errors import BrokerUnreachable
from app.cli.printing import print_json
from app.coverart import musicbrainz
from app.coverart.event_state import event_queue_state
from app.doctor.circuit_breakers import breaker_states
from app.errors import DatabaseFailed
from app.private_services import procfile
from app.private_services.process_states import current_states
from config.routes import art_routes
from config.settings import Settings, get_settings

cli = typer.Typer()

#: Seconds that a report waits for MusicBrainz's database.
_DATABASE_TIMEOUT = 3.0


@cli.command()
def up() -> None:
    """Start private services where no URLs are given, and all processes, until Ctrl-C or `down`."""
    settings = get_settings()
    with procfile.only_one(settings.data_dir) as left:
        for each in left:
            typer.echo(f"stopped {each.name}, which a killed `perennial up` had left running")
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


def unconsumed_art(settings: Settings) -> dict[str, list[str]]:
    """Return the work queues without a consumer of each enabled archive, by the process that should consume them.

    Without a broker there is nothing to return: its state is reported by other commands.
    """
    exchanges = {"coverart": settings.cover_art_exchange, "eventart": settings.event_art_exchange}
    idle: dict[str, list[str]] = {}
    try:
        with connected(settings.broker, timeout=settings.publish_timeout) as connection:
            for process, exchange in exchanges.items():
                for route in art_routes(exchange) if exchange in settings.art_exchanges else ():
                    # A channel each: the broker closes that of a missing queue.
                    try:
                        consumers = connection.channel().queue_declare(route.queue, passive=True).consumer_count
                    except NotFound:
                        consumers = 0
                    if not consumers:
                        idle.setdefault(process, []).append(route.queue)
    except BrokerUnreachable:
        return {}
    return idle


def print_events(settings: Settings, *, as_json: bool) -> None:
    """Print what waits in MusicBrainz's event queue, and on standard error what an operator must look at."""
    try:
        if url := settings.musicbrainz_url.get_secret_value():
            with musicbrainz.connect(url, primary=True, timeout=_DATABASE_TIMEOUT):
                pass
        state = event_queue_state(settings)
    except DatabaseFailed as error:
        typer.echo(str(error), err=True)
        return
    except RedisError:
        return  # The processes say so.
    if state is None:
        return
    for each in () if as_json else state.entities:
        typer.echo(f"events of the type {each.entity}: {each}")
    for text in (*state.problems, *state.warnings):
        typer.echo(text, err=True)


def print_processes(*, as_json: bool) -> bool:
    """Print the state of each process of `perennial up`; return whether it runs, and none of them stays down."""
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
    for process, queues in unconsumed_art(settings).items():
        typer.echo(f"no worker consumes from {', '.join(queues)}: is the process {process} running?", err=True)
    # Without Redis the processes say so.
    with suppress(RedisError):
        for breaker in breaker_states(settings):
            if breaker.reason is not None:
                typer.echo(breaker, err=True)
    print_events(settings, as_json=as_json)
    return bool(states) and not any(each.state == "down" for each in states)
