"""MusicBrainz's table `artwork_indexer.event_queue`: its events become messages of jobs.

An event is `queued` until its message is published, then `running`, whether the message waits or runs, and at last
`completed` or `failed`. A failed run queues it again. Events that depend on a failed one fail with it. No row stays
locked meanwhile.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

from psycopg.sql import SQL

from app.broker.headers import ATTEMPTS
from app.broker.nesting import MAX_NESTING
from app.broker.outgoing import Outgoing
from app.broker.policies.fixed_ttl import RETRIES
from app.coverart import jobs
from app.coverart.event_choice import LONGEST_MESSAGE, MESSAGE, Event, EventChoice
from app.coverart.event_record import MAX_ATTEMPTS, EventRecord
from app.coverart.jobs import EVENT
from app.coverart.musicbrainz import Connection
from app.coverart.project import Project
from app.errors import InvalidJob

_log = logging.getLogger(__name__)

#: Lost events of an archive that are published again at a time.
_LOST_EVENTS = 1_000

#: Days from their creation for which completed events are kept; failed ones stay. Source: metabrainz/artwork-indexer,
#: README.md.
KEPT_DAYS = 90

#: Seconds without a statement after which the server ends the transaction of a reader that hangs: other readers, and
#: MusicBrainz's triggers, wait for its locks.
_IDLE_SECONDS = 60

#: Seconds that a statement of the reader may take on MusicBrainz's primary.
_STATEMENT_SECONDS = 10

#: Publishes messages, and returns when the broker has confirmed all.
Publish = Callable[[Sequence[Outgoing]], None]

# Only chosen events are locked while the broker confirms: MusicBrainz's triggers wait for a locked row. A trigger may
# have given an event another parent since it was chosen. The state is compared as text: by the index of states, which
# the planner may prefer after a burst, all queued events would be visited. A run is counted when it begins to wait for
# a worker, as artwork-indexer counts it. The inner query is an array, since a join may run it for each row of the
# table.
_TAKE_CHOSEN = SQL(
    """
    UPDATE artwork_indexer.event_queue
    SET state = 'running', last_updated = clock_timestamp(), attempts = attempts + 1
    WHERE id = ANY(ARRAY(
        SELECT id FROM artwork_indexer.event_queue AS event
        WHERE id = ANY(%(ids)s) AND state::text = 'queued' AND (depends_on IS NULL OR NOT EXISTS (
            SELECT FROM artwork_indexer.event_queue AS parent
            WHERE parent.id = ANY(event.depends_on) AND parent.state <> 'completed'
        ))
        FOR UPDATE OF event SKIP LOCKED
    ))
    RETURNING id
    """
)

# A burst of events is there before the statistics that describe it. By these the planner would sort the whole queue for
# each page, or read the whole table for some ids. The lock's number is that of this program; it stands for nothing.
_BEGIN_TURN = SQL(
    """
    SELECT set_config('idle_in_transaction_session_timeout', %(idle)s, true),
        set_config('statement_timeout', %(statement)s, true), set_config('enable_sort', 'off', true),
        set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
        pg_try_advisory_xact_lock(20261122, hashtext(%(entity)s))
    """
)

# The row is updated whenever a run begins.
_TAKE_LOST = SQL(
    """
    UPDATE artwork_indexer.event_queue SET last_updated = clock_timestamp(), attempts = greatest(attempts, 1)
    WHERE id = ANY(ARRAY(
        SELECT id FROM artwork_indexer.event_queue
        WHERE state = 'running' AND entity_type::text = %(entity)s AND action::text = ANY(%(actions)s)
        AND last_updated < now() - make_interval(secs => %(seconds)s)
        ORDER BY created, id
        LIMIT %(rows)s
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING id, created, action::text, attempts - 1, depends_on IS NOT NULL, {message}
    """
).format(message=MESSAGE)

_ANY_RUNNING = SQL("SELECT FROM artwork_indexer.event_queue WHERE state = 'running' LIMIT 1")

_FORGET = SQL(
    "DELETE FROM artwork_indexer.event_queue"
    " WHERE state = 'completed' AND created < now() - make_interval(days => %(days)s)"
)

#: The job of each action, and the arguments of its task by the names that an event has for them. A `copy_image` is a
#: move that keeps its source: an event of its own deletes that.
_JOBS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "index": ("index", {"gid": "gid"}),
    "copy_image": ("move", {"artwork_id": "id", "old_gid": "old_gid", "new_gid": "new_gid", "suffix": "suffix"}),
    "delete_image": ("delete", {"artwork_id": "id", "gid": "gid", "suffix": "suffix"}),
    "deindex": ("delete", {"gid": "gid"}),
}


def message_of(event: Event, exchange: str) -> Outgoing:
    """Return the message of the job that carries out an event, whose retry budget is what the event has left.

    Raises InvalidJob for an unknown action, and for a wrong message.
    """
    if event.action not in _JOBS:
        raise InvalidJob(f"event {event.id}: unknown action {event.action}")
    if not isinstance(event.message, dict):
        expected = f"no JSON object of at most {LONGEST_MESSAGE:,} characters and {MAX_NESTING} levels"
        raise InvalidJob(f"event {event.id}: {event.action} whose message is {expected}")
    kind, names = _JOBS[event.action]
    if missing := sorted(set(names) - set(event.message)):
        raise InvalidJob(f"event {event.id}: {event.action} without {', '.join(missing)}")
    job = jobs.job_of(kind, (), {argument: event.message[name] for name, argument in names.items()})
    headers: dict[str, Any] = {EVENT: event.id, RETRIES: max(0, MAX_ATTEMPTS - 1 - event.failed_runs)}
    if event.failed_runs:
        headers[ATTEMPTS] = event.failed_runs
    return jobs.message(job, exchange, str(uuid.uuid4()), headers=headers)


class EventPublisher:
    """Publishes the events of the served archives: those that are ready, and those whose message was lost.

    `exchanges` are the archives. After a failed run an event waits `backoff` seconds for each run so far.
    """

    def __init__(self, exchanges: Mapping[str, Project], publish: Publish, *, backoff: float) -> None:
        self._publish = publish
        self._choices = {exchange: EventChoice(each.entity, backoff) for exchange, each in exchanges.items()}

    @property
    def unfinished(self) -> bool:
        """Whether the last look at the table ended before its end, and found too few events that are ready."""
        return any(choice.unfinished for choice in self._choices.values())

    def publish_ready(self, connection: Connection) -> int:
        """Publish the messages of events that are ready, mark these running, and return their number.

        Those of one item are run one after the other, in their order; a retried one does not hold up others. Of an
        archive one reader publishes at a time, so it sees what others published: the order holds for any number of
        readers. A transaction ends when the broker has confirmed all. A stop in between publishes them again, and the
        first message is dropped. Raises the errors of `publish`.
        """
        published = 0
        for exchange, choice in self._choices.items():
            with _turn(connection, choice.entity) as taken:
                chosen = choice.choose(connection) if taken else []
                if chosen:
                    ids = {id for (id,) in connection.execute(_TAKE_CHOSEN, {"ids": [each.id for each in chosen]})}
                    self._publish_events(connection, [event for event in chosen if event.id in ids], exchange)
                    published += len(ids)
        return published

    def publish_lost(
        self, connection: Connection, exchange: str, *, idle: Callable[[str], bool], seconds: float
    ) -> int:
        """Publish messages of running events again whose last run began, or could have begun, `seconds` ago.

        `idle` returns whether a work queue is empty. While it is not, its messages may just be waiting.
        """
        actions = [action for action, (kind, _) in _JOBS.items() if idle(f"{exchange}.{kind}")]
        entity = self._choices[exchange].entity
        values = {"entity": entity, "actions": actions, "rows": _LOST_EVENTS, "seconds": seconds}
        with _turn(connection, entity) as taken:
            rows = connection.execute(_TAKE_LOST, values) if taken else ()
            lost = [Event.of(*row) for row in rows]
            self._publish_events(connection, sorted(lost, key=attrgetter("created", "id")), exchange)
        return len(lost)

    def _publish_events(self, connection: Connection, events: Sequence[Event], exchange: str) -> None:
        outgoing: list[Outgoing] = []
        for event in events:
            record = EventRecord("", event.id, connection)
            if event.action == "noop":
                _end_noop(record, event.message)
                continue
            try:
                outgoing.append(message_of(event, exchange))
            except InvalidJob as error:
                _log.error("Event %d failed, since it cannot become a message: %s", event.id, error)
                record.fail(str(error))
        if outgoing:
            self._publish(outgoing)


def any_running(connection: Connection) -> bool:
    """Return whether an event is running."""
    return connection.execute(_ANY_RUNNING).fetchone() is not None


def forget_completed(connection: Connection) -> int:
    """Delete events that were created long ago and are completed, and return their number."""
    return connection.execute(_FORGET, {"days": KEPT_DAYS}).rowcount


@contextmanager
def _turn(connection: Connection, entity: str) -> Iterator[bool]:
    """Run the block in a transaction; yield whether no other reader publishes events of these entities until it ends.

    Its statements and pauses are limited: it is on MusicBrainz's primary.
    """
    values = {"idle": f"{_IDLE_SECONDS}s", "statement": f"{_STATEMENT_SECONDS}s", "entity": entity}
    with connection.transaction():
        *_, taken = connection.execute(_BEGIN_TURN, values).fetchone() or (False,)
        yield taken


def _end_noop(record: EventRecord, message: Any) -> None:
    """End an event that asks for nothing, or for a failure: an operator's test of the table."""
    if not (isinstance(message, dict) and message.get("fail")):
        record.complete()
    elif not record.end_failed_run("Failure (no-op)"):
        record.fail("")
