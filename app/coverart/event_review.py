"""What an operator reads of the event queue, and the act on it: failed events are queued again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg.sql import SQL

from app.coverart.event_record import CHANNEL
from app.coverart.musicbrainz import Connection

#: Characters of a message and of a reason that are read.
_MAX_TEXT: Final = 500

_COUNT = SQL(
    "SELECT entity_type::text, state::text, count(*), min(created) FROM artwork_indexer.event_queue"
    " WHERE state <> 'completed' GROUP BY 1, 2 ORDER BY 1, 2"
)

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

# As `event_record` does for descendants: two equal events are never queued, and a failed parent comes first.
_QUEUE_AGAIN = SQL(
    """
    UPDATE artwork_indexer.event_queue AS event SET state = 'queued', attempts = 0, last_updated = clock_timestamp()
    WHERE id = %(id)s AND state = 'failed' AND NOT EXISTS (
        SELECT FROM artwork_indexer.event_queue AS parent
        WHERE parent.id = ANY(event.depends_on) AND parent.state = 'failed'
    ) AND NOT EXISTS (
        SELECT FROM artwork_indexer.event_queue AS twin
        WHERE twin.state = 'queued' AND twin.entity_type = event.entity_type AND twin.action = event.action
        AND twin.message = event.message
    )
    """
)

_NOTIFY = SQL("SELECT pg_notify(%(channel)s, '')")


@dataclass(frozen=True, slots=True)
class EventCount:
    """How many events of an entity have a state; `oldest` is when the first one came, in seconds since the epoch."""

    entity: str
    state: str
    count: int
    oldest: float


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


def count_events(connection: Connection) -> list[EventCount]:
    """Return the events that are not completed, by entity and state."""
    rows = connection.execute(_COUNT)
    return [EventCount(entity, state, count, oldest.timestamp()) for entity, state, count, oldest in rows]


def failed_events(connection: Connection, *, limit: int) -> list[FailedEvent]:
    """Return the events that failed last."""
    rows = connection.execute(_FAILED, {"limit": limit, "length": _MAX_TEXT})
    return [
        FailedEvent(id, entity, action, about, attempts, at.timestamp(), reason, tuple(parents))
        for id, entity, action, about, attempts, at, reason, parents in rows
    ]


def queue_again(connection: Connection, ids: Sequence[int]) -> list[int]:
    """Queue failed events again with all their attempts; return which. Their descendants follow when they complete.

    One stays failed while a parent is failed, or an equal event is queued. They are queued in the given order.
    """
    queued = []
    for event in ids:
        with connection.transaction():
            if connection.execute(_QUEUE_AGAIN, {"id": event}).rowcount:
                queued.append(event)
    if queued:
        connection.execute(_NOTIFY, {"channel": CHANNEL})
    return queued
