"""Runs of the job of an event, and how they end, in its row of MusicBrainz's table `artwork_indexer.event_queue`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from psycopg.sql import SQL

from app.broker.errors import Postpone
from app.broker.failure import MAX_MESSAGE
from app.broker.headers import ATTEMPTS, whole_number
from app.coverart import musicbrainz
from app.coverart.indexer import Indexer
from app.coverart.jobs import Job
from app.coverart.musicbrainz import Connection
from app.errors import ArtNotServed, DatabaseUnavailable
from config.settings import Settings

_log = logging.getLogger(__name__)

#: Seconds after which a job is tried again that did not reach the database.
_WITHOUT_DATABASE = 8.0

#: What the reader listens to. The database notifies it by a trigger, where it has one, and workers do.
CHANNEL = "artwork_indexer_event_queue"

#: Seconds that each statement about a dead letter may take, locks included: the worker's event loop waits for it.
QUICK_SECONDS = 2.0

_QUICK = SQL("SELECT set_config('statement_timeout', %(ms)s, true), set_config('lock_timeout', %(ms)s, true)")

#: Opens a connection as `musicbrainz.connect` does, whose errors name this setting.
connect = partial(musicbrainz.connect, primary=True, variable="EVENT_QUEUE_URL")

_BEGIN = SQL(
    """
    UPDATE artwork_indexer.event_queue
    SET state = 'running', last_updated = clock_timestamp(), attempts = greatest(attempts, %(attempts)s)
    WHERE id = %(id)s AND state <> 'completed'
    RETURNING id
    """
)

_NOTE_FAILURE = (
    SQL(
        "UPDATE artwork_indexer.event_queue SET attempts = attempts + 1, last_updated = clock_timestamp()"
        " WHERE id = %(id)s RETURNING attempts"
    ),
    SQL(
        "INSERT INTO artwork_indexer.event_failure_reason (event, failure_reason)"
        " SELECT id, %(reason)s FROM artwork_indexer.event_queue WHERE id = %(id)s"
    ),
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

_FAIL = SQL(
    "UPDATE artwork_indexer.event_queue SET state = 'failed', attempts = greatest(attempts, 1) WHERE id = %(id)s"
    " AND state <> 'completed'"
)

_AFTER_FAILURE = (
    SQL(
        "INSERT INTO artwork_indexer.event_failure_reason (event, failure_reason)"
        " SELECT id, %(reason)s FROM artwork_indexer.event_queue WHERE id = %(id)s AND NOT EXISTS"
        " (SELECT FROM artwork_indexer.event_failure_reason WHERE event = %(id)s)"
    ),
    _DESCENDANTS.format(condition=SQL("event.state = 'queued'"))
    + SQL("UPDATE artwork_indexer.event_queue SET state = 'failed' WHERE id IN (SELECT id FROM locked)"),
)

_COMPLETE = SQL(
    "UPDATE artwork_indexer.event_queue SET state = 'completed', last_updated = clock_timestamp()"
    " WHERE id = %(id)s AND state <> 'completed'"
)

_FAILED_DESCENDANTS = _DESCENDANTS.format(condition=SQL("event.state = 'failed' AND event.attempts = 0")) + SQL(
    "SELECT id FROM locked"
)

# One generation. An event with another failed parent stays failed. So does one that another change queued again: two
# equal events are never queued.
_QUEUE_AGAIN = SQL(
    """
    UPDATE artwork_indexer.event_queue AS event SET state = 'queued'
    WHERE id = ANY(%(ids)s) AND state = 'failed' AND NOT EXISTS (
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

    def begin(self, attempts: int) -> bool:
        """Note that a run begins after `attempts` failed ones; return False if the event is completed or deleted."""
        with connect(self.url) as connection:
            return connection.execute(_BEGIN, {"id": self.event, "attempts": attempts}).fetchone() is not None

    def note_failure(self, reason: str) -> None:
        """Note a failed run. The retry policy decides whether there is another one."""
        with connect(self.url) as connection, connection.transaction():
            note_failure(connection, self.event, reason)

    def complete(self) -> None:
        """Complete the event, which releases those that depend on it."""
        with connect(self.url) as connection, connection.transaction():
            complete(connection, self.event)

    def fail(self, reason: str) -> None:
        """Fail the event and its descendants; `reason` is kept if no failed run left one."""
        with connect(self.url, timeout=2) as connection, connection.transaction():
            connection.execute(_QUICK, {"ms": str(round(QUICK_SECONDS * 1_000))})
            fail(connection, self.event, reason)


def run_event(record: EventRecord, indexer: Indexer, job: Job, message_id: str, headers: Mapping[str, Any]) -> None:
    """Run the job of an event, unless the event is completed or deleted, and complete the event.

    The table has already ordered the jobs and merged equal ones. Raises Postpone until the job may run and its event
    can be updated, and the errors of the job, which are noted with the event.
    """
    with _patient():
        begun = record.begin(whole_number(headers, ATTEMPTS, default=0))
    if not begun:
        _log.info("Event %d is completed or deleted: its message is dropped", record.event)
        return
    try:
        replace(indexer, ordered=True).handle(job, message_id, headers)
    except Postpone:
        raise
    except Exception as error:
        with _patient():
            record.note_failure(f"{type(error).__name__}: {error}")
        raise
    with _patient():
        record.complete()


@contextmanager
def _patient() -> Iterator[None]:
    """Raise Postpone where the database with the event is away: a run that is not recorded is repeated."""
    try:
        yield
    except DatabaseUnavailable as error:
        raise Postpone(_WITHOUT_DATABASE, str(error)) from error


def note_failure(connection: Connection, event: int, reason: str) -> int:
    """Note a failed run and return the number of them, 0 for an event that was deleted."""
    count, insert = _NOTE_FAILURE
    row = connection.execute(count, {"id": event}).fetchone()
    connection.execute(insert, {"id": event, "reason": _storable(reason)})
    return row[0] if row else 0


def complete(connection: Connection, event: int) -> None:
    """Complete an event in the transaction of the connection.

    An operator, or a replay, may complete an event that had failed. Its descendants never ran, and are queued again.
    """
    connection.execute(_COMPLETE, {"id": event})
    ids = [id for (id,) in connection.execute(_FAILED_DESCENDANTS, {"id": event})]
    while ids and connection.execute(_QUEUE_AGAIN, {"ids": ids}).rowcount:
        pass
    connection.execute(_NOTIFY, {"channel": CHANNEL})


def fail(connection: Connection, event: int, reason: str) -> None:
    """Fail an event and its descendants in the transaction of the connection, unless it is completed or deleted."""
    if connection.execute(_FAIL, {"id": event}).rowcount:
        for statement in _AFTER_FAILURE:
            connection.execute(statement, {"id": event, "reason": _storable(reason)})


def _storable(reason: str) -> str:
    """Return a reason as PostgreSQL can store it, cut to MAX_MESSAGE characters: a server's text may be in it."""
    valid = reason.encode(errors="backslashreplace").decode()
    return valid.replace("\0", "\\0")[:MAX_MESSAGE]
