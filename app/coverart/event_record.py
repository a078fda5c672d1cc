"""How the runs of an event begin and end, in its row of MusicBrainz's table `artwork_indexer.event_queue`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self

from psycopg.errors import UniqueViolation
from psycopg.sql import SQL, Composed

from app.broker.errors import Postpone
from app.broker.failure import MAX_MESSAGE
from app.broker.headers import integer
from app.broker.policies.fixed_ttl import RETRIES
from app.coverart import musicbrainz
from app.coverart.indexer import Indexer
from app.coverart.jobs import Job
from app.coverart.musicbrainz import Connection
from app.errors import ArtNotServed, DatabaseFailed, DatabaseUnavailable, ImageInUse
from config.settings import Settings

_log = logging.getLogger(__name__)

#: Runs of an event before it fails. Source: metabrainz/artwork-indexer, README.md.
MAX_ATTEMPTS = 5

#: Seconds after which a job is tried again that did not reach the database.
_WITHOUT_DATABASE = 8.0

#: What the reader listens to. The database notifies it by a trigger, where it has one, and workers do.
CHANNEL = "artwork_indexer_event_queue"

#: Seconds that each statement about a dead letter may take, locks included: the worker's event loop waits for it.
QUICK_SECONDS = 2.0

#: Tries to queue an event while MusicBrainz's triggers may queue an equal one.
_TRIES = 5

#: Opens a connection as `musicbrainz.connect` does, whose errors name this setting.
connect = partial(musicbrainz.connect, primary=True, variable="EVENT_QUEUE_URL")

_QUICK = SQL("SELECT set_config('statement_timeout', %(ms)s, true), set_config('lock_timeout', %(ms)s, true)")
_NOTIFY = SQL("SELECT pg_notify(%(channel)s, '')")

# The row's lock waits for the end of the reader's transaction, which has published the message: the event is queued
# before.
_BEGIN = SQL(
    """
    WITH locked AS (SELECT state, attempts FROM artwork_indexer.event_queue WHERE id = %(id)s FOR UPDATE)
    UPDATE artwork_indexer.event_queue AS event
    SET state = 'running', last_updated = clock_timestamp(), attempts = %(run)s
    FROM locked
    WHERE event.id = %(id)s
    AND (locked.state = 'failed' OR locked.state = 'running' AND locked.attempts <= %(run)s)
    RETURNING event.depends_on IS NOT NULL
    """
)

# An event without a failed run has no descendants that failed with it. It is completed in one round trip.
_COMPLETE_FIRST_RUN = SQL(
    """
    WITH completed AS (
        UPDATE artwork_indexer.event_queue SET state = 'completed', last_updated = clock_timestamp()
        WHERE id = %(id)s AND state = 'running'
        AND NOT EXISTS (SELECT FROM artwork_indexer.event_failure_reason WHERE event = %(id)s)
        RETURNING id
    ) SELECT pg_notify(%(channel)s, '') FROM completed
    """
)

# An event that was queued again meanwhile, for a newer change, stays queued.
_COMPLETE = SQL(
    "UPDATE artwork_indexer.event_queue SET state = 'completed', last_updated = clock_timestamp()"
    " WHERE id = %(id)s AND state IN ('running', 'failed')"
)

# The children that failed with a parent and never ran. One with another failed parent stays failed.
_FAILED_CHILDREN = SQL(
    """
    SELECT id FROM artwork_indexer.event_queue AS event
    WHERE state = 'failed' AND attempts = 0 AND depends_on && %(parents)s::bigint[] AND NOT EXISTS (
        SELECT FROM artwork_indexer.event_queue AS parent
        WHERE parent.id = ANY(event.depends_on) AND parent.state = 'failed'
    ) ORDER BY id FOR UPDATE OF event
    """
)

_LOCK = SQL("SELECT state::text, attempts FROM artwork_indexer.event_queue WHERE id = %(id)s FOR UPDATE")

_NOTE_REASON = SQL(
    "INSERT INTO artwork_indexer.event_failure_reason (event, failure_reason)"
    " SELECT id, %(reason)s FROM artwork_indexer.event_queue WHERE id = %(id)s"
)

# The row and its only reason, then its queued descendants. These are locked in the order of their ids, so that two
# failures cannot deadlock. Their reason is that of metabrainz/artwork-indexer, which operators search for.
_FAIL = SQL("UPDATE artwork_indexer.event_queue SET state = 'failed' WHERE id = %(id)s AND state = 'running'")
_NOTE_ONLY_REASON = _NOTE_REASON + SQL(
    " AND NOT EXISTS (SELECT FROM artwork_indexer.event_failure_reason WHERE event = %(id)s)"
)
_FAIL_DESCENDANTS = SQL(
    """
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
)

# Two equal events are never queued: a unique index of the schema.
_TWIN = SQL(
    """
    SELECT twin.id FROM artwork_indexer.event_queue AS event JOIN artwork_indexer.event_queue AS twin
    ON twin.entity_type = event.entity_type AND twin.action = event.action AND twin.message = event.message
    WHERE event.id = %(id)s AND twin.id <> event.id AND twin.state = 'queued'
    FOR UPDATE OF twin
    """
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
_QUEUE = SQL("UPDATE artwork_indexer.event_queue SET state = 'queued', {kept} WHERE id = %(id)s")

#: Whether an event whose run begins follows another one, as those of a move do.
Turn = Literal["alone", "with parents"]


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Records in the database at `url` how the runs of an event's message end, or through an open connection.

    Every method raises DatabaseUnavailable and DatabaseFailed.
    """

    url: str
    event: int
    connection: Connection | None = None

    @classmethod
    def of(cls, event: int, settings: Settings) -> Self:
        """Return the record of an event; raises ArtNotServed for settings without its database."""
        url = settings.event_queue_url.get_secret_value()
        if not url:
            raise ArtNotServed(f"a message of event {event} came, and EVENT_QUEUE_URL is not set here")
        return cls(url, event)

    def begin(self, run: int) -> Turn | None:
        """Note that run number `run` begins; return None if the event is completed, deleted, or queued again.

        A message runs only in its turn: that of a queued event is left from a run that was given up. A failed event
        runs by a replay of its dead letter.
        """
        with self._table() as connection:
            row = connection.execute(_BEGIN, {"id": self.event, "run": run}).fetchone()
            return None if row is None else "with parents" if row[0] else "alone"

    def end_failed_run(self, reason: str) -> bool:
        """Note a failed run and queue the event again for another one; return False if it has none left.

        An event that is not running any more is left as it is: it was queued again, or deleted.
        """
        with self._table() as connection, connection.transaction():
            values = {"id": self.event, "reason": _storable(reason), "channel": CHANNEL}
            state, attempts = connection.execute(_LOCK, values).fetchone() or ("", 0)
            connection.execute(_NOTE_REASON, values)
            if state == "running":
                if attempts >= MAX_ATTEMPTS:
                    return False
                queue_again(connection, [self.event], after="failed run")
            connection.execute(_NOTIFY, values)
            return True

    def complete(self) -> None:
        """Complete the event, which releases those that depend on it.

        An operator, or a replay, may complete an event that had failed. Its descendants never ran, and are queued
        again.
        """
        values = {"id": self.event, "channel": CHANNEL}
        with self._table() as connection:
            if connection.execute(_COMPLETE_FIRST_RUN, values).fetchone() is not None:
                return
            with connection.transaction():
                free = [self.event] * connection.execute(_COMPLETE, values).rowcount
                while free:
                    children = [id for (id,) in connection.execute(_FAILED_CHILDREN, {"parents": free})]
                    replaced = queue_again(connection, children, after="failed run")
                    free = [replaced.get(id, id) for id in children]
                connection.execute(_NOTIFY, values)

    def fail(self, reason: str) -> None:
        """Fail the running event and its descendants; `reason` is kept if no failed run left one.

        Without an open connection one is opened, which waits for a short time only.
        """
        values = {"id": self.event, "reason": _storable(reason), "ms": str(round(QUICK_SECONDS * 1_000))}
        lent = nullcontext(self.connection) if self.connection is not None else connect(self.url, timeout=2)
        with lent as connection, connection.transaction():
            if self.connection is None:
                connection.execute(_QUICK, values)
            if connection.execute(_FAIL, values).rowcount:
                connection.execute(_NOTE_ONLY_REASON, values)
                connection.execute(_FAIL_DESCENDANTS, values)

    def _table(self) -> AbstractContextManager[Connection]:
        if self.connection is not None:
            return nullcontext(self.connection)
        return musicbrainz.kept_connection(self.url, variable="EVENT_QUEUE_URL")


def run_event(record: EventRecord, indexer: Indexer, job: Job, message_id: str, headers: Mapping[str, Any]) -> None:
    """Run the job of an event, unless the event is completed, deleted or queued again, and complete the event.

    The table has already ordered the jobs and merged equal ones. A failed run queues the event again, and its message
    is done. Raises Postpone until the job may run and its event can be updated, and the error of the last run.
    """
    run = run_number(headers)
    with _patient():
        turn = record.begin(run)
    if turn is None:
        _log.info("Event %d is completed, deleted or queued again: its message is dropped", record.event)
        return
    try:
        replace(indexer, ordered=True).handle(job, message_id, headers)
    except Postpone:
        raise
    except ImageInUse as error:
        if turn == "alone":
            with _patient():
                record.fail(str(error))
            raise
        _log.info("Event %d: the image was moved back: %s", record.event, error)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        with _patient():
            is_queued = record.end_failed_run(reason)
        if not is_queued:
            raise
        _log.warning("Run %d of %d of event %d failed, it is queued again: %s", run, MAX_ATTEMPTS, record.event, reason)
        return
    with _patient():
        record.complete()


def run_number(headers: Mapping[str, Any]) -> int:
    """Return the number of the run that a message begins, from 1 to MAX_ATTEMPTS: what it has left says so.

    A replay with a fresh budget begins with the first run.
    """
    left = integer(headers.get(RETRIES))
    return 1 if left is None else min(MAX_ATTEMPTS, max(1, MAX_ATTEMPTS - max(0, left)))


@contextmanager
def _patient() -> Iterator[None]:
    """Raise Postpone where the database with the event is away: a run that is not recorded is repeated."""
    try:
        yield
    except DatabaseUnavailable as error:
        raise Postpone(_WITHOUT_DATABASE, str(error), code=error.reason) from error


def queue_again(connection: Connection, events: Sequence[int], *, after: QueuedAfter) -> dict[int, int]:
    """Queue events again in the transaction of the connection; return those that an equal queued event replaced.

    The result has the id of the other event by that of each replaced one, which is completed. Raises DatabaseFailed if
    another program queues equal events all the time.
    """
    twins = {event: _queue(connection, event, _QUEUE.format(kept=_KEPT[after])) for event in events}
    return {event: twin for event, twin in twins.items() if twin is not None}


def _queue(connection: Connection, event: int, update: Composed) -> int | None:
    for _ in range(_TRIES):
        if row := connection.execute(_TWIN, {"id": event}).fetchone():
            for statement in _MERGE:
                connection.execute(statement, {"id": event, "twin": row[0]})
            return int(row[0])
        with suppress(UniqueViolation), connection.transaction():
            connection.execute(update, {"id": event})
            return None
    raise DatabaseFailed(f"event {event} was not queued again: equal events are queued all the time")


def _storable(reason: str) -> str:
    """Return a reason as PostgreSQL can store it, cut to MAX_MESSAGE characters: a server's text may be in it."""
    valid = reason.encode(errors="backslashreplace").decode()
    return valid.replace("\0", "\\0")[:MAX_MESSAGE]
