"""MusicBrainz's table `artwork_indexer.event_queue`: every statement that reads or changes its events.

An event is `queued` until its message is published, then `running`, whether the message waits or runs, and at last
`completed` or `failed`. A failed run queues it again. Events that depend on a failed one fail with it. No row stays
locked meanwhile. Functions get an open connection, and raise DatabaseUnavailable and DatabaseFailed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from psycopg.errors import ProgramLimitExceeded, UniqueViolation
from psycopg.rows import class_row
from psycopg.sql import SQL, Composed

from app.broker.failure import MAX_MESSAGE
from app.coverart import musicbrainz
from app.coverart.musicbrainz import Connection
from app.coverart.project import PROJECTS
from app.errors import ActRefused, DatabaseFailed

#: Runs of an event before it fails. Source: metabrainz/artwork-indexer, README.md.
MAX_ATTEMPTS = 5

#: Characters of an event's message that are read; a valid one has about 150.
LONGEST_MESSAGE = 10_000

#: What the reader listens to. The database notifies it by a trigger, where it has one, and workers do.
CHANNEL = "artwork_indexer_event_queue"

#: Tries to queue an event while MusicBrainz's triggers may queue an equal one.
_TRIES = 5

#: Opens a connection to the database with the table, as `musicbrainz.connect` does.
connect = partial(musicbrainz.connect, primary=True)

# It is read as text, since psycopg would raise an error for a number or a nesting that Python cannot read.
MESSAGE = SQL("left(message::text, {})").format(LONGEST_MESSAGE)

# Of the rows of a query that calls them `event`.
PARENTS_COMPLETED = SQL(
    """(depends_on IS NULL OR NOT EXISTS (
        SELECT FROM artwork_indexer.event_queue AS parent
        WHERE parent.id = ANY(event.depends_on) AND parent.state <> 'completed'
    ))"""
)

# The row's lock waits for the end of the reader's transaction, which has published the message: the event is queued
# before.
_BEGIN = """
    WITH locked AS (SELECT state, attempts FROM artwork_indexer.event_queue WHERE id = %(id)s FOR UPDATE)
    UPDATE artwork_indexer.event_queue AS event
    SET state = 'running', last_updated = clock_timestamp(), attempts = %(run)s
    FROM locked
    WHERE event.id = %(id)s
    AND (locked.state = 'failed' OR locked.state = 'running' AND locked.attempts <= %(run)s)
    RETURNING coalesce(event.depends_on, '{}')
"""

_NOTIFY = "SELECT pg_notify('artwork_indexer_event_queue', '')"

# An event without a failed run has no descendants that failed with it. It is completed in one round trip.
_COMPLETE_FIRST_RUN = """
    WITH completed AS (
        UPDATE artwork_indexer.event_queue SET state = 'completed', last_updated = clock_timestamp()
        WHERE id = %(id)s AND state = 'running'
        AND NOT EXISTS (SELECT FROM artwork_indexer.event_failure_reason WHERE event = %(id)s)
        RETURNING id
    ) SELECT pg_notify('artwork_indexer_event_queue', '') FROM completed
"""

# An event that was queued again meanwhile, for a newer change, stays queued.
_COMPLETE = """
    UPDATE artwork_indexer.event_queue SET state = 'completed', last_updated = clock_timestamp()
    WHERE id = %(id)s AND state IN ('running', 'failed')
"""

# The children that failed with a parent and never ran. One with another failed parent stays failed.
_FAILED_CHILDREN = """
    SELECT id FROM artwork_indexer.event_queue AS event
    WHERE state = 'failed' AND attempts = 0 AND depends_on && %(parents)s::bigint[] AND NOT EXISTS (
        SELECT FROM artwork_indexer.event_queue AS parent
        WHERE parent.id = ANY(event.depends_on) AND parent.state = 'failed'
    ) ORDER BY id FOR UPDATE OF event
"""

_LOCK = "SELECT state::text, attempts FROM artwork_indexer.event_queue WHERE id = %(id)s FOR UPDATE"

_NOTE_REASON = """
    INSERT INTO artwork_indexer.event_failure_reason (event, failure_reason)
    SELECT id, %(reason)s FROM artwork_indexer.event_queue WHERE id = %(id)s
"""

# The row and its only reason, then its queued descendants. These are locked in the order of their ids, so that two
# failures cannot deadlock. Their reason is that of metabrainz/artwork-indexer, which operators search for.
_FAIL = "UPDATE artwork_indexer.event_queue SET state = 'failed' WHERE id = %(id)s AND state = 'running'"
_NOTE_ONLY_REASON = SQL(_NOTE_REASON) + SQL(
    "AND NOT EXISTS (SELECT FROM artwork_indexer.event_failure_reason WHERE event = %(id)s)"
)
_FAIL_DESCENDANTS = """
    WITH RECURSIVE dependent (id) AS (
        SELECT %(id)s::bigint
        UNION
        SELECT event.id FROM artwork_indexer.event_queue AS event, dependent
        WHERE event.depends_on @> ARRAY[dependent.id] AND event.state = 'queued'
    ), locked AS (
        SELECT id FROM artwork_indexer.event_queue WHERE id IN (SELECT id FROM dependent) AND state = 'queued'
        ORDER BY id FOR UPDATE
    ), failed AS (
        UPDATE artwork_indexer.event_queue SET state = 'failed' WHERE id IN (SELECT id FROM locked) RETURNING id
    )
    INSERT INTO artwork_indexer.event_failure_reason (event, failure_reason) SELECT id, format(
        'This event was marked as failed because an event it depended on (%%s) had failed.', %(id)s::bigint
    ) FROM failed
"""

# Two equal events are never queued: a unique index of the schema.
_TWIN = """
    SELECT twin.id FROM artwork_indexer.event_queue AS event JOIN artwork_indexer.event_queue AS twin
    ON twin.entity_type = event.entity_type AND twin.action = event.action AND twin.message = event.message
    WHERE event.id = %(id)s AND twin.id <> event.id AND twin.state = 'queued'
    FOR UPDATE OF twin
"""

# What waits for the event waits for its twin, and the twin for what the event waits for.
_MERGE = (
    """
    UPDATE artwork_indexer.event_queue SET depends_on = array_replace(depends_on, %(id)s, %(twin)s)
    WHERE depends_on @> ARRAY[%(id)s::bigint] AND state IN ('queued', 'failed') AND id <> %(twin)s
    """,
    """
    UPDATE artwork_indexer.event_queue AS twin SET depends_on = coalesce(twin.depends_on, '{}') || event.depends_on
    FROM artwork_indexer.event_queue AS event
    WHERE event.id = %(id)s AND event.depends_on IS NOT NULL AND twin.id = %(twin)s
    """,
    "UPDATE artwork_indexer.event_queue SET state = 'completed', last_updated = clock_timestamp() WHERE id = %(id)s",
    """
    INSERT INTO artwork_indexer.event_failure_reason (event, failure_reason)
    SELECT %(id)s, format('An equal event (%%s) is queued and takes its place.', %(twin)s::bigint)
    """,
)

#: Why events are queued again, and what they keep of their runs. After a failed one an event waits for the next, and a
#: requeued one has all of them again. One that was interrupted loses nothing, and is ready at once.
QueuedAfter = Literal["failed run", "failure", "interruption"]
_KEPT: Mapping[QueuedAfter, SQL] = {
    "failed run": SQL("last_updated = clock_timestamp()"),
    "failure": SQL("attempts = 0, last_updated = clock_timestamp()"),
    "interruption": SQL(
        "attempts = greatest(attempts - 1, 0), last_updated = now() - greatest(attempts - 1, 0) * interval '1 day'"
    ),
}
_QUEUE = SQL("UPDATE artwork_indexer.event_queue SET state = 'queued', {} WHERE id = %(id)s")

# The days are those of metabrainz/artwork-indexer, README.md. Failed events stay.
_FORGET = """
    DELETE FROM artwork_indexer.event_queue WHERE state = 'completed' AND created < now() - interval '90 days'
"""

_ROWS = SQL(
    """
    SELECT id, state::text, entity_type::text AS entity, action::text, {message} AS message,
        coalesce(depends_on, '{{}}') AS depends_on, extract(epoch FROM created)::float8 AS created, attempts,
        extract(epoch FROM last_updated)::float8 AS last_updated, ARRAY(
            SELECT left(failure_reason, {length}) FROM artwork_indexer.event_failure_reason AS failure
            WHERE failure.event = event.id ORDER BY failure.created
        ) AS reasons
    FROM artwork_indexer.event_queue AS event
    """
).format(message=MESSAGE, length=MAX_MESSAGE)
_GIVEN = _ROWS + SQL("WHERE id = ANY(%(ids)s) ORDER BY id")
_OLDEST = _ROWS + SQL("WHERE state::text = %(state)s ORDER BY event.created, id LIMIT %(limit)s")
_LATEST = _ROWS + SQL("WHERE state::text = %(state)s ORDER BY event.last_updated DESC, id DESC LIMIT %(limit)s")

_LOCK_ALL = """
    SELECT id FROM artwork_indexer.event_queue
    WHERE state = %(state)s AND (%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s)) ORDER BY id FOR UPDATE
"""

# The row is updated whenever a run begins.
_LOCK_LOST = """
    SELECT id FROM artwork_indexer.event_queue
    WHERE state = 'running' AND entity_type::text = %(entity)s AND action::text = ANY(%(actions)s)
    AND last_updated < now() - make_interval(secs => %(seconds)s)
    ORDER BY created, id LIMIT 1000 FOR UPDATE SKIP LOCKED
"""

# The lock of a reader's turn, in which it publishes events of an archive. The number is arbitrary.
TURN_LOCK = SQL("(20261122, hashtext({entity}))")
_END_TURNS = SQL("SELECT pg_advisory_xact_lock{} FROM unnest(%(entities)s::text[]) AS entity").format(
    TURN_LOCK.format(entity=SQL("entity"))
)

ArtEventState = Literal["queued", "running", "failed", "completed"]


@dataclass(frozen=True, slots=True)
class ArtEventRow:
    """One row of the table; `message` is its JSON as text, `reasons` are those of its failures, the oldest first.

    Times are in seconds since 1970. A failed event without an attempt failed with a parent, and comes back with it.
    """

    id: int
    state: str
    entity: str
    action: str
    message: str
    depends_on: Sequence[int]
    created: float
    attempts: int
    last_updated: float
    reasons: Sequence[str]


@dataclass(frozen=True, slots=True)
class Requeued:
    """Events that were queued again, and those that an equal queued event replaced, by the id of that one.

    `refused` are events that stay failed, since the table cannot queue a message as long as theirs.
    """

    ids: tuple[int, ...]
    replaced: dict[int, int]
    refused: tuple[int, ...] = ()

    def __str__(self) -> str:
        merged = f", {len(self.replaced):,} of them merged with an equal queued event" if self.replaced else ""
        refused = f"; {len(self.refused):,} stay failed, whose message is too long" if self.refused else ""
        return f"{len(self.ids):,} events queued again{merged}{refused}"


def begin(connection: Connection, event: int, run: int) -> list[int] | None:
    """Note that run number `run` begins; return the event's parents, or None if its message is to be dropped.

    It is dropped if the event is completed, deleted or queued: then the message is left from a run that was given up.
    A failed event runs by a replay of its dead letter.
    """
    row = connection.execute(_BEGIN, {"id": event, "run": run}).fetchone()
    return None if row is None else row[0]


def end_failed_run(connection: Connection, event: int, reason: str) -> bool:
    """Note a failed run and queue the event again for another one; return False if it has none left.

    An event that is not running any more is left as it is: it was queued again, or deleted.
    """
    with connection.transaction():
        values = {"id": event, "reason": _storable(reason)}
        state, attempts = connection.execute(_LOCK, values).fetchone() or ("", 0)
        connection.execute(_NOTE_REASON, values)
        if state == "running":
            if attempts >= MAX_ATTEMPTS:
                return False
            queue_again(connection, [event], after="failed run")
        connection.execute(_NOTIFY)
        return True


def complete(connection: Connection, event: int) -> None:
    """Complete the event, which releases those that depend on it.

    An operator, or a replay, may complete an event that had failed. Its descendants never ran, and are queued again.
    """
    if connection.execute(_COMPLETE_FIRST_RUN, {"id": event}).fetchone() is not None:
        return
    with connection.transaction():
        _queue_failed_children(connection, [event] * connection.execute(_COMPLETE, {"id": event}).rowcount)
        connection.execute(_NOTIFY)


def _queue_failed_children(connection: Connection, parents: list[int]) -> None:
    """Queue the descendants of events again that failed with a parent and never ran."""
    while parents:
        children = [id for (id,) in connection.execute(_FAILED_CHILDREN, {"parents": parents})]
        parents = list(queue_again(connection, children, after="failed run").values())


def fail(connection: Connection, event: int, reason: str) -> None:
    """Fail the running event and its descendants; `reason` is kept if no failed run left one."""
    values = {"id": event, "reason": _storable(reason)}
    with connection.transaction():
        if connection.execute(_FAIL, values).rowcount:
            connection.execute(_NOTE_ONLY_REASON, values)
            connection.execute(_FAIL_DESCENDANTS, values)


def queue_again(connection: Connection, events: Sequence[int], *, after: QueuedAfter) -> dict[int, int]:
    """Queue events again in the transaction of the connection; return what is queued for each of them.

    That is the event itself, or an equal queued one that replaces it: then it is completed. An event whose message,
    inserted by hand, is too long to be queued is left out: it fails if it is running. Raises DatabaseFailed if another
    program queues equal events all the time.
    """
    queued = {event: _queue(connection, event, after) for event in events}
    return {event: by for event, by in queued.items() if by is not None}


def _queue(connection: Connection, event: int, after: QueuedAfter) -> int | None:
    """Return the id of the event that is queued, or None for a message that the table cannot queue."""
    for _ in range(_TRIES):
        if row := connection.execute(_TWIN, {"id": event}).fetchone():
            for statement in _MERGE:
                connection.execute(statement, {"id": event, "twin": row[0]})
            # The twin did not fail: its completion would look for no children that did.
            _queue_failed_children(connection, [row[0]])
            return int(row[0])
        try:
            with suppress(UniqueViolation), connection.transaction():
                connection.execute(_QUEUE.format(_KEPT[after]), {"id": event})
                return event
        except ProgramLimitExceeded as error:  # The index of queued events takes no message as long as this one.
            fail(connection, event, f"it cannot be queued again: {error}")
            return None
    raise DatabaseFailed(f"event {event} was not queued again: equal events are queued all the time")


def _storable(reason: str) -> str:
    """Return a reason as PostgreSQL can store it, cut to MAX_MESSAGE characters: a server's text may be in it."""
    valid = reason.encode(errors="backslashreplace").decode()
    return valid.replace("\0", "\\0")[:MAX_MESSAGE]


def queue_lost(connection: Connection, entity: str, actions: Sequence[str], seconds: float) -> int:
    """Queue running events again whose last run began over `seconds` ago, in a transaction; return their number.

    They lose no run, as those that are handed back.
    """
    lost = connection.execute(_LOCK_LOST, {"entity": entity, "actions": list(actions), "seconds": seconds}).fetchall()
    queue_again(connection, [id for (id,) in lost], after="interruption")
    return len(lost)


def any_running(connection: Connection) -> bool:
    """Return whether an event is running."""
    query = "SELECT FROM artwork_indexer.event_queue WHERE state = 'running' LIMIT 1"
    return connection.execute(query).fetchone() is not None


def forget_completed(connection: Connection) -> int:
    """Delete events that were created long ago and are completed, and return their number."""
    return connection.execute(_FORGET).rowcount


def list_events(connection: Connection, state: ArtEventState, *, limit: int, latest: bool = False) -> list[ArtEventRow]:
    """Return the oldest events of a state, or with `latest` those that were updated last."""
    return _rows(connection, _LATEST if latest else _OLDEST, state=state, limit=limit)


def find_events(connection: Connection, ids: Sequence[int]) -> list[ArtEventRow]:
    """Return the events with these ids; raises ActRefused for an unknown one."""
    found = _rows(connection, _GIVEN, ids=list(ids))
    for id in set(ids).difference(row.id for row in found):
        raise ActRefused(f"event {id}: the table does not have it")
    return found


def _rows(connection: Connection, query: Composed, **values: Any) -> list[ArtEventRow]:
    return connection.cursor(row_factory=class_row(ArtEventRow)).execute(query, values).fetchall()


def requeue(
    connection: Connection,
    state: Literal["failed", "running"],
    ids: Sequence[int] | None = None,
    *,
    dry_run: bool = False,
) -> Requeued:
    """Queue events of a state again, all of them for None: failed ones have all their runs again.

    Running ones are handed back: they lose no run, and are ready at once. This indexer then leaves their messages
    aside, and another one can take the table over. What a reader publishes meanwhile is waited for. Raises ActRefused
    for an id that has another state.
    """
    with connection.transaction():
        if state == "running" and not dry_run:
            connection.execute(_END_TURNS, {"entities": [project.entity for project in PROJECTS]})
        for row in find_events(connection, ids or ()):
            if row.state != state:
                raise ActRefused(f"event {row.id} is {row.state}, and not {state}")
        values = {"state": state, "ids": None if ids is None else list(ids)}
        found = tuple(id for (id,) in connection.execute(_LOCK_ALL, values))
        if dry_run:
            return Requeued(found, {})
        queued = queue_again(connection, found, after="failure" if state == "failed" else "interruption")
        replaced = {event: by for event, by in queued.items() if by != event}
        return Requeued(tuple(queued), replaced, tuple(id for id in found if id not in queued))
