"""Queue events again: after a failed run, by an operator, or for another indexer that takes the table over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.sql import SQL

from app.coverart.musicbrainz import Connection

#: Tries to queue an event while MusicBrainz's triggers may queue an equal one.
_TRIES = 5

# Two equal events are never queued: a unique index of the schema.
_TWIN = SQL(
    """
    SELECT twin.id FROM artwork_indexer.event_queue AS event JOIN artwork_indexer.event_queue AS twin
    ON twin.entity_type = event.entity_type AND twin.action = event.action AND twin.message = event.message
    WHERE event.id = %(id)s AND twin.id <> event.id AND twin.state = 'queued'
    FOR UPDATE OF twin
    """
)

_QUEUE = SQL(
    "UPDATE artwork_indexer.event_queue SET state = 'queued', {assignments} WHERE id = %(id)s AND state <> 'queued'"
)

#: What an event keeps of its runs. After a failed one it waits for the next; a new one begins with none; one that was
#: interrupted loses nothing, and is ready at once.
AFTER_FAILED_RUN = SQL("last_updated = clock_timestamp()")
AS_NEW = SQL("attempts = 0, last_updated = clock_timestamp()")
INTERRUPTED = SQL(
    "attempts = greatest(attempts - 1, 0), last_updated = now() - greatest(attempts - 1, 0) * interval '1 day'"
)

# What waits for the event waits for its twin, and the twin for what the event waits for.
_MERGE = (
    SQL(
        "UPDATE artwork_indexer.event_queue SET depends_on = array_replace(depends_on, %(id)s, %(twin)s)"
        " WHERE depends_on @> ARRAY[%(id)s::bigint] AND state IN ('queued', 'failed') AND id <> %(twin)s"
    ),
    SQL(
        "UPDATE artwork_indexer.event_queue AS twin SET depends_on = coalesce(twin.depends_on, '{{}}') ||"
        " event.depends_on FROM artwork_indexer.event_queue AS event WHERE event.id = %(id)s"
        " AND event.depends_on IS NOT NULL AND twin.id = %(twin)s"
    ).format(),
    SQL(
        "UPDATE artwork_indexer.event_queue SET state = 'completed', last_updated = clock_timestamp() WHERE id = %(id)s"
    ),
    SQL(
        "INSERT INTO artwork_indexer.event_failure_reason (event, failure_reason)"
        " SELECT %(id)s, format('An equal event (%%s) is queued and takes its place.', %(twin)s::bigint)"
    ),
)


def queue_again(connection: Connection, events: Sequence[int], *, keep: SQL = AFTER_FAILED_RUN) -> dict[int, int]:
    """Queue events again in the transaction of the connection; return those that an equal queued event replaced.

    The result has the id of the other event by that of each replaced one, which is completed. `keep` says what becomes
    of the number of runs. Raises psycopg's UniqueViolation if another program queues equal events all the time.
    """
    replaced: dict[int, int] = {}
    for event in events:
        for left in reversed(range(_TRIES)):
            if twin := _twin(connection, event):
                for statement in _MERGE:
                    connection.execute(statement, {"id": event, "twin": twin})
                replaced[event] = twin
                break
            try:
                with connection.transaction():
                    connection.execute(_QUEUE.format(assignments=keep), {"id": event})
                break
            except psycopg.errors.UniqueViolation:
                if not left:
                    raise
    return replaced


def _twin(connection: Connection, event: int) -> int | None:
    row: tuple[Any, ...] | None = connection.execute(_TWIN, {"id": event}).fetchone()
    return None if row is None else int(row[0])
