"""Making databases that look like MusicBrainz's own to an indexer of its art."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import psycopg
from psycopg.sql import SQL, Composable, Identifier
from psycopg.sql import Literal as Quoted

from app.coverart.project import PROJECTS, Project

_FOLDER = Path(__file__).parent


#: Where the triggers write what an indexer must do: messages for a relay, as until 2024, or a queue of events.
Producer = Literal["outbox", "event_queue"]

#: The files of a producer: its tables, its triggers for each archive, and those for releases alone.
_FILES: dict[Producer, tuple[str, str, str]] = {
    "outbox": ("outbox", "triggers", "release_triggers"),
    "event_queue": ("event_queue", "event_triggers", "release_event_triggers"),
}


def install(url: str, producer: Producer = "outbox") -> None:
    """Make all tables, triggers and functions in an empty database, in one transaction."""
    tables, triggers, release_triggers = _FILES[producer]
    with psycopg.connect(url) as connection:
        connection.execute(_read("schema"))
        connection.execute(_read(tables))
        for project in PROJECTS:
            for name in ("archive", triggers):
                connection.execute(_read(name).format(**_names(project)))
        connection.execute(_read("types"))
        connection.execute(_read(release_triggers))
        connection.execute(_read("updates"))


def add_event_queue(url: str) -> None:
    """Add the empty event queue to a database with an outbox, whose triggers stay as they are."""
    with psycopg.connect(url) as connection:
        connection.execute(_read("event_queue"))


def queue_events(url: str) -> None:
    """Replace the triggers that write the outbox by those that write the event queue."""
    with psycopg.connect(url) as connection:
        connection.execute(_read("drop_triggers"))
        for project in PROJECTS:
            connection.execute(_read("event_triggers").format(**_names(project)))
        connection.execute(_read("release_event_triggers"))


@contextmanager
def template(url: str, producer: Producer = "outbox") -> Iterator[str]:
    """Make a database with everything in it, beside that of `url`, for the block; yield its name."""
    with _database(url, source="template0") as made:
        install(made, producer)
        yield urlsplit(made).path[1:]


@contextmanager
def copy_of(url: str, source: str) -> Iterator[str]:
    """Make a copy of the database named `source`, beside that of `url`, for the block; yield its URL."""
    with _database(url, source=source) as made:
        yield made


@contextmanager
def _database(url: str, *, source: str) -> Iterator[str]:
    name = f"musicbrainz_{secrets.token_hex(6)}"
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(SQL("CREATE DATABASE {} TEMPLATE {}").format(Identifier(name), Identifier(source)))
        try:
            yield urlsplit(url)._replace(path=f"/{name}").geturl()
        finally:
            # Remaining connections belong to a test that is over.
            server.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


def _read(name: str) -> SQL:
    return SQL((_FOLDER / f"{name}.sql").read_text())


def _names(project: Project) -> dict[str, Composable]:
    names: dict[str, Composable] = {
        "schema": Identifier(project.schema),
        "table": Identifier(project.table),
        "types_table": Identifier(f"{project.table}_type"),
        "entity": Identifier(project.entity),
        "schema_changed": Identifier(f"{project.schema}_changed"),
        "schema_deleted": Identifier(f"{project.schema}_deleted"),
        "exchange": Quoted(project.prefix),
        "entity_type": Quoted(project.entity),
    }
    return names | {"back": _read("back").format(**names) if project.has_back else SQL("")}
