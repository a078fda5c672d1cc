"""MusicBrainz's table `artwork_indexer.event_queue`: its events become messages of jobs.

An event is `queued` until its message is published, then `running`, whether the message waits, runs or is retried, and
at last `completed` or `failed`. Events that depend on a failed one fail with it. No row stays locked meanwhile.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg.sql import SQL, Composable

from app.broker.failure import MAX_MESSAGE
from app.broker.headers import ATTEMPTS
from app.broker.nesting import MAX_NESTING, read_json
from app.broker.outgoing import Outgoing
from app.broker.policies.fixed_ttl import EXCEPTIONS, MAX_EXCEPTIONS, RETRIES
from app.coverart import jobs
from app.coverart.event_record import complete, fail, note_failure
from app.coverart.jobs import EVENT, Job
from app.coverart.musicbrainz import Connection
from app.coverart.project import Project
from app.errors import InvalidJob

_log = logging.getLogger(__name__)

#: Runs of an event before it fails. Source: metabrainz/artwork-indexer, README.md.
MAX_ATTEMPTS = 5

#: Events of an archive whose messages are in the broker at the same time, retried ones excluded. Others wait in the
#: table, where equal ones become one.
IN_FLIGHT = 100

#: Ready events of an archive that are considered at a time.
_CANDIDATES = 1_000

#: Days from their end for which completed events are kept; failed ones stay. Source: metabrainz/artwork-indexer,
#: README.md.
KEPT_DAYS = 90

#: Characters of an event's message that are read; a valid one has about 150.
_LONGEST_MESSAGE = 10_000

#: Seconds without a statement after which the server ends the transaction of a reader that hangs: other readers, and
#: MusicBrainz's triggers, wait for its locks.
_IDLE_SECONDS = 60

#: Publishes messages, and returns when the broker has confirmed all.
Publish = Callable[[Sequence[Outgoing]], None]

# A message is read as text, since psycopg would raise an error for a number or a nesting that Python cannot read. Other
# programs may have left long reasons.
_MESSAGE = SQL("left(message::text, {length})").format(length=_LONGEST_MESSAGE)
_COLUMNS = SQL(
    """
    SELECT id, entity_type::text, action::text, {message}, attempts, ARRAY(
        SELECT left(failure_reason, {length}) FROM (
            SELECT failure_reason, created FROM artwork_indexer.event_failure_reason AS failure
            WHERE failure.event = event.id ORDER BY created DESC LIMIT {number}
        ) AS latest ORDER BY created
    )
    FROM artwork_indexer.event_queue AS event
    """
).format(message=_MESSAGE, length=MAX_MESSAGE, number=MAX_EXCEPTIONS)

# After a failure an event waits an hour for each attempt. An image is copied after an earlier copy brought it to the
# item. A deletion that is no part of a move waits for a later move of the same file.
_READY = _COLUMNS + SQL(
    """
    WHERE state = 'queued' AND entity_type::text = %(entity)s AND attempts < %(max_attempts)s
    AND last_updated <= now() - attempts * interval '1 hour'
    AND NOT EXISTS (
        SELECT FROM artwork_indexer.event_queue AS parent
        WHERE parent.id = ANY(event.depends_on) AND parent.state <> 'completed'
    )
    AND NOT (event.action IN ('copy_image', 'delete_image') AND EXISTS (
        SELECT FROM artwork_indexer.event_queue AS copy
        WHERE copy.state IN ('queued', 'running') AND copy.action = 'copy_image'
        AND copy.entity_type = event.entity_type AND copy.message -> 'artwork_id' = event.message -> 'artwork_id'
        AND CASE event.action
            WHEN 'copy_image' THEN copy.id < event.id AND copy.message -> 'new_gid' = event.message -> 'old_gid'
            ELSE copy.id > event.id AND event.depends_on IS NULL
                AND copy.message -> 'old_gid' = event.message -> 'gid'
        END
    ))
    """
)

_CANDIDATES_OF = _READY + SQL("ORDER BY created, id LIMIT %(candidates)s")

# Only chosen events are locked while the broker confirms: MusicBrainz's triggers wait for a locked row.
_LOCK_CHOSEN = _READY + SQL("AND id = ANY(%(ids)s) ORDER BY created, id FOR UPDATE OF event SKIP LOCKED")

_FIRST_RUNS = SQL(
    "SELECT {message} FROM artwork_indexer.event_queue"
    " WHERE state = 'running' AND attempts = 0 AND entity_type::text = %(entity)s"
).format(message=_MESSAGE)

# The number is that of this program and purpose; it stands for nothing.
_TAKE_TURN = SQL(
    "SELECT pg_try_advisory_xact_lock(20261122, hashtext(%(entity)s)),"
    " set_config('idle_in_transaction_session_timeout', %(ms)s, true)"
)

# The row is updated whenever a run begins or fails: a failed one waits in the broker before its next run.
_LOST = _COLUMNS + SQL(
    """
    WHERE state = 'running' AND entity_type::text = %(entity)s AND action::text = ANY(%(actions)s)
    AND last_updated < now() - make_interval(
        secs => %(seconds)s + CASE WHEN attempts > 0 THEN %(retry_seconds)s ELSE 0 END
    )
    ORDER BY created, id
    LIMIT %(candidates)s
    FOR UPDATE OF event SKIP LOCKED
    """
)

_RUNNING = SQL(
    "UPDATE artwork_indexer.event_queue SET state = 'running', last_updated = clock_timestamp() WHERE id = ANY(%(ids)s)"
)

_ANY_RUNNING = SQL("SELECT FROM artwork_indexer.event_queue WHERE state = 'running' LIMIT 1")

_FORGET = SQL(
    "DELETE FROM artwork_indexer.event_queue"
    " WHERE state = 'completed' AND last_updated < now() - make_interval(days => %(days)s)"
)


@dataclass(frozen=True, slots=True)
class Event:
    """One row. Its message may be any JSON; None if it cannot be read.

    `attempts` are its failed runs, `failures` their reasons in order, the last ten.
    """

    id: int
    entity: str
    action: str
    message: Any
    attempts: int
    failures: tuple[str, ...] = ()


def job_of_event(event: Event) -> Job:
    """Return the job that carries out an event; raises InvalidJob for an unknown action, and for a wrong message.

    A `copy_image` is a move that keeps its source: an event of its own deletes that.
    """
    if event.action not in _JOBS:
        raise InvalidJob(f"event {event.id}: unknown action {event.action}")
    if not isinstance(event.message, dict):
        expected = f"no JSON object of at most {_LONGEST_MESSAGE:,} characters and {MAX_NESTING} levels"
        raise InvalidJob(f"event {event.id}: {event.action} whose message is {expected}")
    kind, names = _JOBS[event.action]
    missing = sorted(set(names) - set(event.message))
    if missing:
        raise InvalidJob(f"event {event.id}: {event.action} without {', '.join(missing)}")
    return jobs.job_of(kind, (), {argument: event.message[name] for name, argument in names.items()})


#: The job of each action, and the arguments of its task by the names that an event has for them.
_JOBS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "index": ("index", {"gid": "gid"}),
    "copy_image": ("move", {"artwork_id": "id", "old_gid": "old_gid", "new_gid": "new_gid", "suffix": "suffix"}),
    "delete_image": ("delete", {"artwork_id": "id", "gid": "gid", "suffix": "suffix"}),
    "deindex": ("delete", {"gid": "gid"}),
}


def message_of_event(event: Event, exchange: str) -> Outgoing:
    """Return the message of an event's job, whose retry budget is what the event has left; raises InvalidJob."""
    headers: dict[str, Any] = {EVENT: event.id, RETRIES: max(0, MAX_ATTEMPTS - 1 - event.attempts)}
    if event.attempts:
        headers |= {ATTEMPTS: event.attempts, EXCEPTIONS: list(event.failures)}
    return replace(jobs.message(job_of_event(event), exchange, str(uuid.uuid4())), headers=headers)


def publish_ready(connection: Connection, exchanges: Mapping[str, Project], publish: Publish) -> int:
    """Publish the messages of events that are ready, mark these running, and return their number.

    Those of one item are run one after the other, in their order; a retried one does not hold up others. `exchanges`
    are the served archives. Of an archive one reader publishes at a time, so it sees what others published: the order
    holds for any number of readers. A transaction ends when the broker has confirmed all: a stop in between publishes
    them again, and a job that runs twice does no harm. Raises the errors of `publish`.
    """
    published = 0
    for exchange, project in exchanges.items():
        of_archive = {"entity": project.entity, "max_attempts": MAX_ATTEMPTS, "candidates": _CANDIDATES}
        with connection.transaction():
            # Until the transaction ends, no other reader publishes events of the archive.
            of_turn = {"entity": project.entity, "ms": str(round(_IDLE_SECONDS * 1_000))}
            if not any(taken for taken, _ in connection.execute(_TAKE_TURN, of_turn)):
                continue
            ready = _events(connection, _CANDIDATES_OF, of_archive)
            first_runs = [_decoded(about) for (about,) in connection.execute(_FIRST_RUNS, of_archive)]
            ids = [event.id for event in _chosen(ready, first_runs)]
            chosen = _events(connection, _LOCK_CHOSEN, {**of_archive, "ids": ids}) if ids else []
            _publish(connection, chosen, exchange, publish)
        published += len(chosen)
    return published


def _chosen(ready: Sequence[Event], first_runs: Sequence[Any]) -> list[Event]:
    """Return the ready events to publish, one of each item; `first_runs` are the messages of those that run."""
    busy = {item for about in first_runs for item in _items(about)}
    chosen: list[Event] = []
    for event in ready:
        items = _items(event.message)
        if busy.isdisjoint(items) and len(first_runs) + len(chosen) < IN_FLIGHT:
            chosen.append(event)
        busy |= items
    return chosen


def publish_lost(
    connection: Connection,
    exchanges: Mapping[str, Project],
    publish: Publish,
    *,
    idle: Callable[[str], bool],
    seconds: float,
    retry_seconds: float,
) -> int:
    """Publish the messages of running events again whose last run began, or could have begun, too long ago.

    That is `seconds` ago, and after a failure `retry_seconds` more. `idle` returns whether a work queue is empty. While
    it is not, its messages may just be waiting.
    """
    published = 0
    for exchange, project in exchanges.items():
        actions = [action for action, (kind, _) in _JOBS.items() if idle(f"{exchange}.{kind}")]
        values = {"entity": project.entity, "actions": actions, "candidates": _CANDIDATES}
        with connection.transaction():
            lost = _events(connection, _LOST, {**values, "seconds": seconds, "retry_seconds": retry_seconds})
            _publish(connection, lost, exchange, publish)
        published += len(lost)
    return published


def any_running(connection: Connection) -> bool:
    """Return whether an event is running."""
    return connection.execute(_ANY_RUNNING).fetchone() is not None


def forget_completed(connection: Connection) -> int:
    """Delete events that were completed long ago, and return their number."""
    return connection.execute(_FORGET, {"days": KEPT_DAYS}).rowcount


def _events(connection: Connection, query: Composable, values: Mapping[str, Any]) -> list[Event]:
    rows = connection.execute(SQL("{}").format(query), values)
    return [
        Event(id, entity, action, _decoded(about), attempts, tuple(failures))
        for id, entity, action, about, attempts, failures in rows
    ]


def _decoded(message: str) -> Any:
    """Return the value of a message; None for one that was cut, has too large a number or is nested too deeply."""
    try:
        return read_json(message)
    except ValueError:
        return None


def _items(about: Any) -> set[str]:
    """Return the gids that an event is about; none for a message that is no JSON object."""
    if not isinstance(about, dict):
        return set()
    return {str(about[name]) for name in ("gid", "old_gid", "new_gid") if name in about}


def _publish(connection: Connection, events: Sequence[Event], exchange: str, publish: Publish) -> None:
    outgoing: dict[int, Outgoing] = {}
    for event in events:
        if event.action == "noop":
            # It asks for nothing, or for a failure: an operator's test of the table.
            if not (isinstance(event.message, dict) and event.message.get("fail")):
                complete(connection, event.id)
            elif note_failure(connection, event.id, "Failure (no-op)") >= MAX_ATTEMPTS:
                fail(connection, event.id, "")
            continue
        try:
            outgoing[event.id] = message_of_event(event, exchange)
        except InvalidJob as error:
            _log.error("Event %d failed, since it cannot become a message: %s", event.id, error)
            note_failure(connection, event.id, str(error))
            fail(connection, event.id, str(error))
    if outgoing:
        publish(list(outgoing.values()))
        connection.execute(_RUNNING, {"ids": list(outgoing)})
