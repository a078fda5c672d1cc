"""Rows of MusicBrainz's event queue as operators list, show and queue them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from psycopg.sql import SQL

from app.broker.failure import MAX_MESSAGE
from app.coverart.event_choice import MESSAGE
from app.coverart.event_requeue import AS_NEW, INTERRUPTED, queue_again
from app.coverart.musicbrainz import Connection

EventState = Literal["queued", "running", "failed", "completed"]

_COLUMNS = SQL(
    """
    SELECT id, state::text, entity_type::text, action::text, {message}, coalesce(depends_on, '{{}}'),
        extract(epoch FROM created)::float8, attempts, extract(epoch FROM last_updated)::float8, ARRAY(
            SELECT left(failure_reason, {length}) FROM artwork_indexer.event_failure_reason AS failure
            WHERE failure.event = event.id ORDER BY failure.created
        )
    FROM artwork_indexer.event_queue AS event
    """
).format(message=MESSAGE, length=MAX_MESSAGE)

_OLDEST = _COLUMNS + SQL("WHERE state::text = %(state)s ORDER BY created, id LIMIT %(limit)s")
_LATEST = _COLUMNS + SQL("WHERE state::text = %(state)s ORDER BY last_updated DESC, id DESC LIMIT %(limit)s")
_GIVEN = _COLUMNS + SQL("WHERE id = ANY(%(ids)s) ORDER BY id")

_LOCK_FAILED = SQL(
    "SELECT id FROM artwork_indexer.event_queue WHERE state = 'failed' AND (%(ids)s::bigint[] IS NULL"
    " OR id = ANY(%(ids)s)) ORDER BY id FOR UPDATE"
)
_LOCK_RUNNING = SQL("SELECT id FROM artwork_indexer.event_queue WHERE state = 'running' ORDER BY id FOR UPDATE")


@dataclass(frozen=True, slots=True)
class EventRow:
    """One row of the table; `message` is its JSON as text, `reasons` are those of its failures, the oldest first.

    Times are in seconds since 1970. A failed event without an attempt failed with a parent, and comes back with it.
    """

    id: int
    state: str
    entity: str
    action: str
    message: str
    depends_on: tuple[int, ...]
    created: float
    attempts: int
    last_updated: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Requeued:
    """Events that were queued again, and those that an equal queued event replaced, by the id of that one."""

    ids: tuple[int, ...]
    replaced: dict[int, int]

    def __str__(self) -> str:
        merged = f", {len(self.replaced):,} of them merged with an equal queued event" if self.replaced else ""
        return f"{len(self.ids):,} events queued again{merged}"


def list_events(
    connection: Connection, state: EventState, *, limit: int, order: Literal["oldest", "latest"] = "oldest"
) -> list[EventRow]:
    """Return the oldest events of a state, or those that were updated last."""
    query = _OLDEST if order == "oldest" else _LATEST
    return _rows(connection.execute(query, {"state": state, "limit": limit}))


def find_events(connection: Connection, ids: Sequence[int]) -> list[EventRow]:
    """Return the events with these ids; an unknown one is left out."""
    return _rows(connection.execute(_GIVEN, {"ids": list(ids)}))


def requeue_failed(connection: Connection, ids: Sequence[int] | None, *, dry_run: bool = False) -> Requeued:
    """Queue failed events again, with all their runs; None means all of them. Others of `ids` are left as they are."""
    with connection.transaction():
        values = {"ids": None if ids is None else list(ids)}
        failed = tuple(id for (id,) in connection.execute(_LOCK_FAILED, values))
        return Requeued(failed, {} if dry_run else queue_again(connection, failed, keep=AS_NEW))


def hand_back(connection: Connection, *, dry_run: bool = False) -> Requeued:
    """Queue all running events again, as if they had not been published. They lose no run, and are ready at once.

    This indexer then leaves their messages aside, and another one can take the table over.
    """
    with connection.transaction():
        running = tuple(id for (id,) in connection.execute(_LOCK_RUNNING))
        return Requeued(running, {} if dry_run else queue_again(connection, running, keep=INTERRUPTED))


def _rows(rows: Any) -> list[EventRow]:
    return [
        EventRow(id, state, entity, action, text, tuple(parents), created, attempts, updated, tuple(reasons))
        for id, state, entity, action, text, parents, created, attempts, updated, reasons in rows
    ]
