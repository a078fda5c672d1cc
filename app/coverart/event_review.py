"""The events of MusicBrainz's event queue that failed last, each with its last reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from psycopg.sql import SQL

from app.coverart.musicbrainz import Connection

#: Characters of a message and of a reason that are read.
_MAX_TEXT: Final = 500

# Those that failed with another event come back with it.
_FAILED = SQL(
    """
    SELECT id, entity_type::text, action::text, left(message::text, %(length)s), attempts, last_updated, coalesce((
        SELECT left(failure_reason, %(length)s) FROM artwork_indexer.event_failure_reason AS failure
        WHERE failure.event = event.id ORDER BY created DESC LIMIT 1
    ), ''), ARRAY(
        SELECT parent.id FROM artwork_indexer.event_queue AS parent
        WHERE parent.id = ANY(event.depends_on) AND parent.state = 'failed'
    )
    FROM artwork_indexer.event_queue AS event
    WHERE state = 'failed' ORDER BY last_updated DESC, id DESC LIMIT %(limit)s
    """
)


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """A failed event with its last reason; `failed_parents` are those it waits for. Times are epoch seconds."""

    id: int
    entity: str
    action: str
    message: str
    attempts: int
    at: float
    reason: str
    failed_parents: tuple[int, ...]


def failed_events(connection: Connection, *, limit: int) -> list[FailedEvent]:
    """Return the events that failed last."""
    rows = connection.execute(_FAILED, {"limit": limit, "length": _MAX_TEXT})
    return [
        FailedEvent(id, entity, action, about, attempts, at.timestamp(), reason, tuple(parents))
        for id, entity, action, about, attempts, at, reason, parents in rows
    ]
