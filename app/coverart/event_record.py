"""Runs of the job of an event, and how they end, in its row of MusicBrainz's table `artwork_indexer.event_queue`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self

from psycopg.sql import SQL

from app.broker.errors import Postpone
from app.broker.failure import MAX_MESSAGE
from app.broker.headers import integer
from app.broker.policies.fixed_ttl import RETRIES
from app.coverart import musicbrainz
from app.coverart.event_requeue import queue_again
from app.coverart.indexer import Indexer
from app.coverart.jobs import Job
from app.coverart.musicbrainz import Connection
from app.errors import ArtNotServed, DatabaseUnavailable, ImageInUse
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

_QUICK = SQL("SELECT set_config('statement_timeout', %(ms)s, true), set_config('lock_timeout', %(ms)s, true)")

#: Opens a connection as `musicbrainz.connect` does, whose errors name this setting.
connect = partial(musicbrainz.connect, primary=True, variable="EVENT_QUEUE_URL")

_LOCK = SQL("SELECT state::text, attempts FROM artwork_indexer.event_queue WHERE id = %(id)s FOR UPDATE")

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

_NOTE_REASON = SQL(
    "INSERT INTO artwork_indexer.event_failure_reason (event, failure_reason)"
    " SELECT id, %(reason)s FROM artwork_indexer.event_queue WHERE id = %(id)s"
)

# Locked in the order of their ids, so that two failures cannot deadlock.
_DESCENDANTS = SQL(
    """
    WITH RECURSIVE dependent (id) AS (
        SELECT event.id FROM artwork_indexer.event_queue AS event
        WHERE event.depends_on @> ARRAY[%(id)s::bigint] AND {condition}
        UNION
        SELECT event.id FROM artwork_indexer.event_queue AS event, dependent
        WHERE event.depends_on @> ARRAY[dependent.id] AND {condition}
    ), locked AS (
        SELECT id FROM artwork_indexer.event_queue WHERE id IN (SELECT id FROM dependent) ORDER BY id FOR UPDATE
    )
    """
)

_FAIL = SQL("UPDATE artwork_indexer.event_queue SET state = 'failed' WHERE id = %(id)s AND state = 'running'")

_NOTE_ONLY_REASON = SQL(
    "INSERT INTO artwork_indexer.event_failure_reason (event, failure_reason)"
    " SELECT %(id)s, %(reason)s WHERE NOT EXISTS"
    " (SELECT FROM artwork_indexer.event_failure_reason WHERE event = %(id)s)"
)

# The reason is that of metabrainz/artwork-indexer, which operators search for.
_FAIL_DESCENDANTS = _DESCENDANTS.format(condition=SQL("event.state = 'queued'")) + SQL(
    """
    , failed AS (
        UPDATE artwork_indexer.event_queue SET state = 'failed' WHERE id IN (SELECT id FROM locked) RETURNING id
    )
    INSERT INTO artwork_indexer.event_failure_reason (event, failure_reason) SELECT id, format(
        'This event was marked as failed because an event it depended on (%%s) had failed.', %(id)s::bigint
    ) FROM failed
    """
)

# An event that was queued again meanwhile, for a newer change, stays queued.
_COMPLETE = SQL(
    "UPDATE artwork_indexer.event_queue SET state = 'completed', last_updated = clock_timestamp()"
    " WHERE id = %(id)s AND state IN ('running', 'failed') RETURNING EXISTS"
    " (SELECT FROM artwork_indexer.event_failure_reason WHERE event = %(id)s)"
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

_FAILED_DESCENDANTS = _DESCENDANTS.format(condition=SQL("event.state = 'failed' AND event.attempts = 0")) + SQL(
    "SELECT id FROM locked"
)

# One generation. An event with another failed parent stays failed.
_FREE_OF_FAILED_PARENTS = SQL(
    """
    SELECT id FROM artwork_indexer.event_queue AS event
    WHERE id = ANY(%(ids)s) AND state = 'failed' AND NOT EXISTS (
        SELECT FROM artwork_indexer.event_queue AS parent
        WHERE parent.id = ANY(event.depends_on) AND parent.state = 'failed'
    ) ORDER BY id
    """
)

_NOTIFY = SQL("SELECT pg_notify(%(channel)s, '')")


#: Whether an event whose run begins follows another one, as those of a move do.
Turn = Literal["alone", "with parents"]


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Records in the database at `url` how the runs of an event's message end.

    Every method raises DatabaseUnavailable and DatabaseFailed.
    """

    url: str
    event: int

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
        with self._connection() as connection:
            row = connection.execute(_BEGIN, {"id": self.event, "run": run}).fetchone()
            return None if row is None else "with parents" if row[0] else "alone"

    def end_failed_run(self, reason: str) -> bool:
        """Note a failed run and queue the event again; return False if that was its last run."""
        with self._connection() as connection, connection.transaction():
            return end_failed_run(connection, self.event, reason)

    def complete(self) -> None:
        """Complete the event, which releases those that depend on it."""
        with self._connection() as connection:
            values = {"id": self.event, "channel": CHANNEL}
            if connection.execute(_COMPLETE_FIRST_RUN, values).fetchone() is None:
                with connection.transaction():
                    complete(connection, self.event)

    def fail(self, reason: str) -> None:
        """Fail the event and its descendants; `reason` is kept if no failed run left one."""
        with connect(self.url, timeout=2) as connection, connection.transaction():
            connection.execute(_QUICK, {"ms": str(round(QUICK_SECONDS * 1_000))})
            fail(connection, self.event, reason)

    def _connection(self) -> AbstractContextManager[Connection]:
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
        raise Postpone(_WITHOUT_DATABASE, str(error)) from error


def end_failed_run(connection: Connection, event: int, reason: str) -> bool:
    """Note a failed run and queue the event again for another one; return False if it has none left.

    An event that is not running any more is left as it is: it was queued again, or deleted.
    """
    state, attempts = connection.execute(_LOCK, {"id": event}).fetchone() or ("", 0)
    connection.execute(_NOTE_REASON, {"id": event, "reason": _storable(reason)})
    if state == "running" and attempts >= MAX_ATTEMPTS:
        return False
    if state == "running":
        queue_again(connection, [event])
    connection.execute(_NOTIFY, {"channel": CHANNEL})
    return True


def complete(connection: Connection, event: int) -> None:
    """Complete an event in the transaction of the connection.

    An operator, or a replay, may complete an event that had failed. Its descendants never ran, and are queued again.
    """
    row = connection.execute(_COMPLETE, {"id": event}).fetchone()
    if row is not None and row[0]:
        ids = [id for (id,) in connection.execute(_FAILED_DESCENDANTS, {"id": event})]
        while free := [id for (id,) in connection.execute(_FREE_OF_FAILED_PARENTS, {"ids": ids})]:
            queue_again(connection, free)
    connection.execute(_NOTIFY, {"channel": CHANNEL})


def fail(connection: Connection, event: int, reason: str) -> None:
    """Fail a running event and its descendants in the transaction of the connection."""
    if connection.execute(_FAIL, {"id": event}).rowcount:
        connection.execute(_NOTE_ONLY_REASON, {"id": event, "reason": _storable(reason)})
        connection.execute(_FAIL_DESCENDANTS, {"id": event})


def _storable(reason: str) -> str:
    """Return a reason as PostgreSQL can store it, cut to MAX_MESSAGE characters: a server's text may be in it."""
    valid = reason.encode(errors="backslashreplace").decode()
    return valid.replace("\0", "\\0")[:MAX_MESSAGE]
