"""What editors do to MusicBrainz, as plain SQL: what it publishes is its triggers' business.

Every function works in the transaction of its connection; gids are canonical strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString

from psycopg import Connection
from psycopg.sql import SQL, Composed, Identifier, Placeholder

from app.coverart.project import COVER_ART, Project

Db = Connection[tuple[Any, ...]]


def add_artist(db: Db, name: str) -> int:
    """Add an artist, whose name is its sort name, and return its id."""
    added = db.execute("INSERT INTO musicbrainz.artist (name, sort_name) VALUES (%s, %s) RETURNING id", (name, name))
    return int(_one(added.fetchone()))


def rename_artist(db: Db, artist: int, name: str) -> None:
    """Give an artist another name and sort name."""
    db.execute("UPDATE musicbrainz.artist SET name = %s, sort_name = %s WHERE id = %s", (name, name, artist))


def add_release(db: Db, name: str, artist: int, *, gid: str | None = None) -> str:
    """Add a release that is credited to one artist; return its gid, which is made at random unless given."""
    added = db.execute(
        """
        WITH credit AS (
            INSERT INTO musicbrainz.artist_credit (name)
            SELECT name FROM musicbrainz.artist WHERE id = %(artist)s RETURNING id
        ), credited AS (
            INSERT INTO musicbrainz.artist_credit_name (artist_credit, position, artist, name)
            SELECT credit.id, 0, artist.id, artist.name FROM credit, musicbrainz.artist WHERE artist.id = %(artist)s
        ), added AS (
            INSERT INTO musicbrainz.release (gid, name, artist_credit)
            SELECT coalesce(%(gid)s, gen_random_uuid()), %(name)s, credit.id FROM credit RETURNING gid
        )
        SELECT gid::text FROM added
        """,
        {"gid": gid, "name": name, "artist": artist},
    )
    return str(_one(added.fetchone()))


def add_event(db: Db, name: str, *, gid: str | None = None) -> str:
    """Add an event; return its gid, which is made at random unless given."""
    added = db.execute(
        "INSERT INTO musicbrainz.event (gid, name) VALUES (coalesce(%s, gen_random_uuid()), %s) RETURNING gid::text",
        (gid, name),
    )
    return str(_one(added.fetchone()))


def rename(db: Db, project: Project, gid: str, name: str) -> None:
    """Give a release or an event another name."""
    _run(db, project, "UPDATE musicbrainz.{entity} SET name = %s WHERE gid = %s", name, gid)


def add_art(
    db: Db,
    project: Project,
    gid: str,
    image: int,
    *,
    types: Sequence[int] = (),
    mime_type: str = "image/jpeg",
    comment: str = "",
    approved: bool = True,
) -> int:
    """Add an image, by its id, behind the others of its release or event; return the number of its edit."""
    edit = _add_edit(db, closed=approved)
    _run(
        db,
        project,
        "INSERT INTO {schema}.{table} (id, {entity}, comment, edit, ordering, mime_type) SELECT %s, entity.id, %s, %s,"
        " (SELECT coalesce(max(ordering), 0) + 1 FROM {schema}.{table} WHERE {entity} = entity.id), %s"
        " FROM musicbrainz.{entity} AS entity WHERE gid = %s",
        *(image, comment, edit, mime_type, gid),
    )
    _add_types(db, project, image, types)
    return edit


def comment_on(db: Db, project: Project, image: int, comment: str) -> None:
    """Give an image another comment."""
    _run(db, project, "UPDATE {schema}.{table} SET comment = %s WHERE id = %s", comment, image)


def put_at(db: Db, project: Project, image: int, place: int) -> None:
    """Give an image another place, from 1; its neighbours are renumbered at the end of the transaction."""
    _run(db, project, "UPDATE {schema}.{table} SET ordering = %s WHERE id = %s", place, image)


def set_types(db: Db, project: Project, image: int, types: Sequence[int]) -> None:
    """Say of what types an image is, in place of those that it had."""
    _run(db, project, "DELETE FROM {schema}.{types_table} WHERE id = %s", image)
    _add_types(db, project, image, types)


def remove_art(db: Db, project: Project, image: int) -> None:
    """Delete one image."""
    _run(db, project, "DELETE FROM {schema}.{table} WHERE id = %s", image)


def merge(db: Db, project: Project, source: str, target: str) -> None:
    """Merge a release or an event into another one: its images go there, its gid leads there, and it is deleted."""
    _run(
        db,
        project,
        "UPDATE {schema}.{table} SET {entity} = target.id, ordering = ordering"
        " + (SELECT coalesce(max(ordering), 0) FROM {schema}.{table} AS there WHERE there.{entity} = target.id)"
        " FROM musicbrainz.{entity} AS source, musicbrainz.{entity} AS target"
        " WHERE {table}.{entity} = source.id AND source.gid = %s AND target.gid = %s",
        *(source, target),
    )
    _run(
        db,
        project,
        "UPDATE musicbrainz.{redirect} SET new_id = target.id FROM musicbrainz.{entity} AS source,"
        " musicbrainz.{entity} AS target WHERE new_id = source.id AND source.gid = %s AND target.gid = %s",
        *(source, target),
    )
    _run(
        db,
        project,
        "INSERT INTO musicbrainz.{redirect} (gid, new_id) SELECT %s, id FROM musicbrainz.{entity} WHERE gid = %s",
        *(source, target),
    )
    delete(db, project, source)


def delete(db: Db, project: Project, gid: str) -> None:
    """Delete a release or an event, with its images and the gids that lead to it."""
    _run(
        db,
        project,
        "DELETE FROM musicbrainz.{redirect} WHERE new_id = (SELECT id FROM musicbrainz.{entity} WHERE gid = %s)",
        gid,
    )
    _run(db, project, "DELETE FROM musicbrainz.{entity} WHERE gid = %s", gid)


def add_cover(db: Db, gid: str, image: int, *, types: Sequence[int] = (1,)) -> int:
    """Add an approved JPEG to a release, by default its front; return the number of its edit."""
    return add_art(db, COVER_ART, gid, image, types=types)


def queue_event(db: Db, action: str, message: str, **columns: Any) -> int:
    """Queue an event, by default of a release, as a trigger does; `message` is JSON. Return its id."""
    given = {"entity_type": "release", "action": action, "message": message, **columns}
    added = db.execute(
        SQL("INSERT INTO artwork_indexer.event_queue ({}) VALUES ({}) RETURNING id").format(
            SQL(", ").join(map(Identifier, given)), SQL(", ").join([Placeholder()] * len(given))
        ),
        list(given.values()),
    )
    return int(_one(added.fetchone()))


def event_states(db: Db) -> dict[int, tuple[str, int]]:
    """Return state and attempts of each event."""
    rows = db.execute("SELECT id, state::text, attempts FROM artwork_indexer.event_queue ORDER BY id")
    return {id: (state, attempts) for id, state, attempts in rows}


def _add_edit(db: Db, *, closed: bool) -> int:
    added = db.execute(
        "INSERT INTO musicbrainz.edit (close_time) VALUES (CASE WHEN %s THEN now() END) RETURNING id", (closed,)
    )
    return int(_one(added.fetchone()))


def _add_types(db: Db, project: Project, image: int, types: Sequence[int]) -> None:
    for type_id in types:
        _run(db, project, "INSERT INTO {schema}.{types_table} (id, type_id) VALUES (%s, %s)", image, type_id)


def _run(db: Db, project: Project, statement: LiteralString, *values: object) -> tuple[Any, ...] | None:
    cursor = db.execute(_named(project, statement), values)
    return cursor.fetchone() if cursor.description else None


def _named(project: Project, statement: LiteralString) -> Composed:
    return SQL(statement).format(
        schema=Identifier(project.schema),
        table=Identifier(project.table),
        types_table=Identifier(f"{project.table}_type"),
        entity=Identifier(project.entity),
        redirect=Identifier(f"{project.entity}_gid_redirect"),
    )


def _one(row: tuple[Any, ...] | None) -> Any:
    if row is None:
        raise LookupError("the statement returned no row: is what it is about there?")
    return row[0]
