"""Read releases and events with their images from MusicBrainz's database. This module never writes.

The database has other users, and may be behind pgbouncer with transaction pooling. So nothing is prepared on the
server or set for a session, and every read is one short read-only transaction with its own time limit.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, LiteralString
from uuid import UUID

import psycopg
from psycopg import conninfo
from psycopg.sql import SQL, Identifier

from app.coverart.project import Entity, Image, Merge, Project
from app.errors import DatabaseFailed, DatabaseUnavailable

#: Rows are tuples.
Connection = psycopg.Connection[tuple[Any, ...]]

#: The gid before every other one.
FIRST_GID = "00000000-0000-0000-0000-000000000000"

#: Gids of entities that have images; of those that were merged, whose item should have no image; of those that were
#: deleted and not merged, whose item should have nothing.
GidKind = Literal["with_art", "merged", "deleted"]

#: Seconds that a read may take, and a count of all gids.
READ_SECONDS, COUNT_SECONDS = 30.0, 120.0

_READ_ONLY = SQL("SET TRANSACTION READ ONLY; SET LOCAL statement_timeout = {}")
_IS_STANDBY = SQL("SELECT pg_is_in_recovery()")
#: When the last row behind the metadata changed. A release is credited to artists, and an event is not.
_CHANGED: Mapping[str, LiteralString] = {
    "release": """greatest(found.last_updated, (
        SELECT max(artist.last_updated)
        FROM musicbrainz.artist_credit_name AS credited JOIN musicbrainz.artist ON artist.id = credited.artist
        WHERE credited.artist_credit = found.artist_credit
    ))""",
    "event": "found.last_updated",
}
#: SQLSTATE of a serialization failure, a deadlock, a lock that was not free in time, and a transaction that idled too
#: long; also of a write to a standby, which a failover may promote. The same statement may succeed later.
_TRANSIENT = frozenset({"40001", "40P01", "55P03", "25006", "25P03"})

#: Milliseconds after which the kernel gives up a connection whose server acknowledges nothing.
_UNACKNOWLEDGED_MS = 15_000

#: Seconds of silence after which the kernel asks whether the server's machine is there. By default these are two hours.
_KEEPALIVE = 10

#: Seconds to wait for the result of a statement, more than any time limit of one: a server that hangs keeps no limit.
#: Two such waits fit into the time limit of a job.
_RESULT_SECONDS = 135.0


class _BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that ends where a result does not come in time, so that its process can go on."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Wait for what the generator awaits; without `timeout` that is the result of a statement."""
        try:
            return super().wait(gen, interval, _RESULT_SECONDS if timeout is None else timeout)
        except psycopg.OperationalError as error:
            if self.info.transaction_status != psycopg.pq.TransactionStatus.ACTIVE:
                raise
            self.close()
            raise psycopg.OperationalError(f"no result in {_RESULT_SECONDS:g} s") from error


@contextmanager
def connect(url: str, *, primary: bool = False, timeout: float = 10.0) -> Iterator[Connection]:
    """Open a connection for the block; `timeout` is in seconds, at least 2. The settings have checked the URL.

    With `primary`, a standby is refused, since it may be behind; of several hosts in the URL, the primary is taken.

    Raises, also within the block:
        DatabaseUnavailable: it cannot be reached, the connection broke, a read took too long, or it is a standby.
        DatabaseFailed: it answered with an error.
    """
    with _own_errors(url), _open(url, primary=primary, timeout=timeout) as connection:
        yield connection


#: Connections that this process keeps for its next jobs, and when each was last used, by their URL and `primary`.
#: There is one for each setting with a URL; threads of one process open others, which are closed.
_kept: dict[tuple[str, bool], tuple[Connection, float]] = {}

#: Seconds after its last use for which a connection is not checked: within a job.
_FRESH = 1.0

# A child must not use the connection of its parent. psycopg leaves the server's session to the parent.
os.register_at_fork(after_in_child=_kept.clear)


@contextmanager
def kept_connection(url: str, *, primary: bool = True) -> Iterator[Connection]:
    """Lend the connection that this process keeps for its jobs; it is opened by the first one.

    A new connection costs the server more than all statements of a job. Each job checks the kept one by a statement.
    It opens another one if the server ended it or, with `primary`, is a standby by now. Between two blocks it is in no
    transaction and nothing is set for its session, so it may be that of a pooler. Raises as `connect` does.
    """
    key = url, primary
    with _own_errors(url):
        kept, used_at = _kept.pop(key, (None, 0.0))
        if kept is not None and time.monotonic() - used_at >= _FRESH:
            is_usable = False
            with suppress(psycopg.Error):
                is_usable = kept.execute(_IS_STANDBY).fetchone() == (False,) or not primary
            if not is_usable:
                kept.close()
                kept = None
        connection = _open(url, primary=primary) if kept is None else kept
        try:
            yield connection
        finally:
            is_idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            if connection.closed or not is_idle or key in _kept:
                connection.close()
            else:
                _kept[key] = connection, time.monotonic()


def is_pooled(connection: Connection) -> bool:
    """Return whether a connection leads to a pooler, which names a backend that is not the server's own."""
    return connection.execute("SELECT pg_backend_pid()").fetchone() != (connection.info.backend_pid,)


def _open(url: str, *, primary: bool, timeout: float = 10.0) -> Connection:
    # The URL may set other time-outs, but no other encoding.
    options: dict[str, Any] = {
        "connect_timeout": round(timeout),
        "tcp_user_timeout": _UNACKNOWLEDGED_MS,
        "keepalives_idle": _KEEPALIVE,
        "keepalives_interval": _KEEPALIVE,
        **conninfo.conninfo_to_dict(url),
        "client_encoding": "UTF8",
        **({"target_session_attrs": "primary"} if primary else {}),
    }
    return _BoundedConnection.connect(**options, autocommit=True, prepare_threshold=None)


@contextmanager
def _own_errors(url: str) -> Iterator[None]:
    """Raise DatabaseUnavailable and DatabaseFailed in place of psycopg's errors."""
    try:
        yield
    except psycopg.Error as error:
        # A broken connection has no SQLSTATE. Class 08 is connection exceptions, 53 insufficient resources, 57 operator
        # intervention: a time limit or a shutdown (PostgreSQL, appendix A). Any other error is one of the query.
        is_outage = isinstance(error, psycopg.OperationalError) and (
            error.sqlstate is None or error.sqlstate[:2] in {"08", "53", "57"}
        )
        kind = DatabaseUnavailable if is_outage or error.sqlstate in _TRANSIENT else DatabaseFailed
        parameters = conninfo.conninfo_to_dict(url)
        host = parameters.get("host") or parameters.get("hostaddr") or "localhost"
        database = f"MusicBrainz's database {parameters.get('dbname', '')!r} at {host}"
        # libpq adds hints in further lines.
        text = " ".join(str(error).split()) or type(error).__name__
        needed = "the primary is needed, and this is a standby: " if "hot standby" in text else ""
        raise kind(f"{database}: {needed}{text}") from error


def entity(connection: Connection, project: Project, gid: str) -> Entity | None:
    """Return an entity with its images in order, or None if it does not exist.

    The gid of a merged entity returns its target, which has another gid. One statement reads everything, so the
    result is consistent.
    """
    return entities(connection, project, [gid]).get(gid)


def entities(connection: Connection, project: Project, gids: Collection[str]) -> dict[str, Entity]:
    """Return the entities of gids as `entity` does, by the given gid; an unknown one is left out."""
    given = {str(UUID(gid)): gid for gid in gids}
    rows = _read(connection, project, "entities", gids=list(given))
    found: dict[str, Entity] = {}
    for wanted, group in groupby(rows, key=itemgetter(0)):
        images = list(group)
        _, gid, changed, merged, *_ = images[0]
        found[given[wanted]] = Entity(
            gid=gid,
            images=tuple(Image(*[*row[4:-1], tuple(row[-1])]) for row in images if row[4] is not None),
            merged=tuple(Merge(old, float(age)) for old, age in merged),
            changed=changed,
        )
    return found


def next_gids(
    kind: GidKind, connection: Connection, project: Project, *, after: str = FIRST_GID, limit: int = 1_000
) -> list[str]:
    """Return the gids of a kind that come next after `after`, in their order: none at the end.

    A caller may take hours for all, and must not keep a snapshot open. An entity that gets its first image meanwhile
    may be missed; the database's trigger sends a message for it.
    """
    rows = _read(connection, project, kind, after=after, limit=limit, entity=project.entity)
    return [gid for (gid,) in rows]


def count_gids(kind: GidKind, connection: Connection, project: Project, *, after: str = FIRST_GID) -> int:
    """Return the number of all gids of a kind after `after`."""
    [[count]] = _read(connection, project, kind, counted=True, after=after, limit=None, entity=project.entity)
    return int(count)


def gids_of_images(connection: Connection, project: Project, images: Collection[int]) -> dict[int, str]:
    """Return the gid of each image's entity; an image that the database does not have is left out."""
    return dict(_read(connection, project, "gids_of_images", images=list(images)))


def _read(
    connection: Connection, project: Project, query: str, *, counted: bool = False, **values: object
) -> list[tuple[Any, ...]]:
    """Return the rows of a query of queries.sql, or their number."""
    # One round trip: the server takes statements that come together for one transaction.
    cursor = psycopg.ClientCursor(connection).execute(_query(query, project, counted), values)
    while cursor.nextset():
        pass
    return cursor.fetchall()


@cache
def _query(name: str, project: Project, counted: bool) -> bytes:
    """Return a query of queries.sql for the tables of a project, or one that counts its rows, with its time limit."""
    text = Path(__file__).with_name("queries.sql").read_text()
    _, *parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    queries: Mapping[str, LiteralString] = dict(zip(parts[::2], parts[1::2], strict=True))
    query = SQL(queries[name]).format(
        schema=Identifier(project.schema),
        table=Identifier(project.table),
        types_table=Identifier(f"{project.table}_type"),
        entity=Identifier(project.entity),
        redirect=Identifier(f"{project.entity}_gid_redirect"),
        is_back=SQL("listing.is_back") if project.has_back else SQL("FALSE"),
        changed=SQL(_CHANGED[project.entity]),
    )
    if counted:
        query = SQL("SELECT count(*) FROM ({}) AS row").format(query)
    milliseconds = round((COUNT_SECONDS if counted else READ_SECONDS) * 1_000)
    return SQL("{}; {}").format(_READ_ONLY.format(milliseconds), query).as_bytes()
