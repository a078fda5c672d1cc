"""Reading MusicBrainz's database: what has which images. Nothing is ever written to it.

Made for a database that is somebody else's, and may be behind pgbouncer with transaction pooling: nothing is prepared
on the server, nothing is set for a session, every read is one short read-only transaction with its own time limit.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from psycopg import conninfo
from psycopg.sql import SQL, Composed, Identifier

from app.coverart.project import Entity, Image, Project
from app.errors import DatabaseFailed, DatabaseUnavailable

#: Rows are tuples.
Connection = psycopg.Connection[tuple[Any, ...]]

#: Below every gid.
FIRST_GID = "00000000-0000-0000-0000-000000000000"

_READ_ONLY = SQL("SET TRANSACTION READ ONLY")
_TIME_LIMIT = SQL("SELECT set_config('statement_timeout', %s, true)")


@contextmanager
def connect(url: str, *, timeout: float = 10.0) -> Iterator[Connection]:
    """Open a connection for the block; `timeout` is in seconds, at least 2.

    One for each job: that costs a few milliseconds beside a job's requests, and there is none to go stale or to hold.

    Raises, from what the block does with the connection as well:
        DatabaseUnavailable: it cannot be reached, or broke off, or a read took too long.
        DatabaseFailed: it answered with an error.
    """
    parameters = _parameters(url)
    try:
        with psycopg.connect(
            # The URL may ask for another time-out, but not for another encoding.
            **{"connect_timeout": round(timeout), **parameters, "client_encoding": "UTF8"},
            autocommit=True,
            prepare_threshold=None,
        ) as connection:
            yield connection
    except psycopg.Error as error:
        kind = DatabaseUnavailable if _is_outage(error) else DatabaseFailed
        # libpq's advice stands in lines of its own.
        raise kind(f"{_address(parameters)}: {' '.join(str(error).split()) or type(error).__name__}") from error


def entity(connection: Connection, project: Project, gid: str, *, time_limit: float = 30.0) -> Entity | None:
    """Return an entity with its images in order, or None where there is none; `time_limit` is in seconds.

    A gid that was merged away gives the entity that it leads to, which has another gid. All is read by one statement,
    and therefore at one moment.
    """
    rows = _read(connection, _query("entity", project), {"gid": gid}, time_limit=time_limit)
    if not rows:
        return None
    return Entity(gid=rows[0][0], images=tuple(_image(row[1:]) for row in rows if row[1] is not None))


def all_gids(
    connection: Connection, project: Project, *, after: str = FIRST_GID, batch: int = 1_000, time_limit: float = 30.0
) -> Iterator[str]:
    """Yield the gid of every entity that has images, in the order of the gids, behind `after`.

    Read in batches, each in a transaction of its own: no snapshot is kept for the hours that a caller may take, and an
    entity that gets its first image meanwhile may be missed, as its trigger tells of it.
    """
    pages = _pages(connection, _query("with_art", project), after=after, batch=batch, time_limit=time_limit)
    return (gid for (gid,) in pages)


def merged_gids(
    connection: Connection, project: Project, *, after: str = FIRST_GID, batch: int = 1_000, time_limit: float = 30.0
) -> Iterator[tuple[str, str]]:
    """Yield every gid that was merged away with the gid that it leads to: its item should hold no image any more.

    In the order of the gids, behind `after`, in batches as `all_gids` reads them. What was deleted and not merged is
    not known here.
    """
    pages = _pages(connection, _query("merged", project), after=after, batch=batch, time_limit=time_limit)
    return ((old, new) for old, new in pages)


def count_gids(
    connection: Connection, project: Project, *, after: str = FIRST_GID, time_limit: float = 120.0
) -> tuple[int, int]:
    """Return how many gids `all_gids` and `merged_gids` would yield."""
    [row] = _read(connection, _query("counts", project), {"after": after}, time_limit=time_limit)
    return int(row[0]), int(row[1])


def homes(
    connection: Connection, project: Project, images: Collection[int], *, time_limit: float = 30.0
) -> dict[int, str]:
    """Return the gid of the entity that each of these images belongs to; an image that is not there is left out."""
    return dict(_read(connection, _query("homes", project), {"images": list(images)}, time_limit=time_limit))


def _pages(
    connection: Connection, query: Composed, *, after: object, batch: int, time_limit: float
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query page by page; the first column of a row is what the next page begins behind."""
    while rows := _read(connection, query, {"after": after, "limit": batch}, time_limit=time_limit):
        yield from rows
        after = rows[-1][0]


def _read(
    connection: Connection, query: Composed, values: Mapping[str, object], *, time_limit: float
) -> list[tuple[Any, ...]]:
    with connection.transaction():
        connection.execute(_READ_ONLY)
        connection.execute(_TIME_LIMIT, (str(round(time_limit * 1_000)),))
        return connection.execute(query, values).fetchall()


def _image(columns: Sequence[Any]) -> Image:
    *others, types = columns
    return Image(*[*others, tuple(types)])


@cache
def _query(name: str, project: Project) -> Composed:
    return SQL(_queries()[name]).format(
        schema=Identifier(project.schema),
        table=Identifier(project.table),
        types_table=Identifier(f"{project.table}_type"),
        entity=Identifier(project.entity),
        redirect=Identifier(f"{project.entity}_gid_redirect"),
        is_back=SQL("listing.is_back") if project.has_back else SQL("FALSE"),
    )


@cache
def _queries() -> Mapping[str, str]:
    """Return the queries of queries.sql by name."""
    text = Path(__file__).with_name("queries.sql").read_text()
    _, *parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _parameters(url: str) -> dict[str, Any]:
    if not url.startswith(("postgresql://", "postgres://")):
        raise DatabaseUnavailable("MUSICBRAINZ_URL is not postgresql://user:password@host/database")
    try:
        parameters = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # Neither the URL nor libpq's complaint is quoted: both may hold the password.
        raise DatabaseUnavailable("MUSICBRAINZ_URL cannot be read as a PostgreSQL URL") from None
    # Of a password with a slash or an at-sign, libpq takes the rest for a host or a database, and these are quoted.
    if any("@" in str(parameters.get(name, "")) for name in ("host", "port", "dbname")):
        raise DatabaseUnavailable("MUSICBRAINZ_URL: write a / or @ of its user or password as %2F or %40")
    return parameters


def _address(parameters: Mapping[str, Any]) -> str:
    host = parameters.get("host") or parameters.get("hostaddr") or "localhost"
    return f"MusicBrainz's database {parameters.get('dbname', '')!r} at {host}"


def _is_outage(error: psycopg.Error) -> bool:
    """Tell whether the database was not there or had no time, rather than answered that something is wrong.

    A connection that breaks has no SQLSTATE. Class 08 is connection exceptions, 53 insufficient resources, 57 operator
    intervention, which a time limit and a shutdown are (PostgreSQL, appendix A).
    """
    if not isinstance(error, psycopg.OperationalError):
        return False
    return error.sqlstate is None or error.sqlstate[:2] in {"08", "53", "57"}
