"""Publish events of MusicBrainz's table `event_queue`: which ones of an archive come next, and their messages.

A poll costs time that depends on what is published and not on the length of the queue.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Literal

from psycopg.sql import SQL

from app.broker.headers import ATTEMPTS
from app.broker.nesting import MAX_NESTING, read_json
from app.broker.outgoing import Outgoing
from app.broker.policies.fixed_ttl import RETRIES
from app.coverart import event_table, jobs
from app.coverart.event_table import LONGEST_MESSAGE, MAX_ATTEMPTS, MESSAGE, PARENTS_COMPLETED, TURN_LOCK
from app.coverart.jobs import EVENT
from app.coverart.musicbrainz import Connection
from app.coverart.project import Project
from app.errors import InvalidJob

_log = logging.getLogger(__name__)

#: Events of an archive whose messages are in the broker at the same time: as many as ended in the last `_RATE_SECONDS`,
#: within these limits. So a new message waits about that long there, whether a job takes a millisecond or a second.
#: Other events wait in the table, where equal ones become one and a new one may be published first.
MIN_IN_FLIGHT, MAX_IN_FLIGHT = 20, 1_000
_RATE_SECONDS = 5.0

#: Rows that are read at a time, beside two for each event that may be published, and how many times in one poll.
_MIN_PAGE, _MAX_PAGES = 100, 8

#: Seconds without a statement after which the server ends the transaction of a reader that hangs: other readers, and
#: MusicBrainz's triggers, wait for its locks.
_IDLE_SECONDS = 60

#: Seconds that a statement of the reader may take on MusicBrainz's primary.
_STATEMENT_SECONDS = 10

#: Publishes messages, and returns when the broker has confirmed all.
Publish = Callable[[Sequence[Outgoing]], None]

# A burst of events is there before the statistics that describe it. By these the planner would sort the whole queue for
# each page, or read the whole table for some ids.
_BEGIN_TURN = SQL(
    """
    SELECT set_config('idle_in_transaction_session_timeout', %(idle)s, true),
        set_config('statement_timeout', %(statement)s, true), set_config('enable_sort', 'off', true),
        set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true), pg_try_advisory_xact_lock{}
    """
).format(TURN_LOCK.format(entity=SQL("%(entity)s")))

# After some minutes a running event counts no more: its worker was killed, or its service is away for long.
_IN_FLIGHT = SQL(
    """
    SELECT id, {} FROM artwork_indexer.event_queue
    WHERE state = 'running' AND entity_type::text = %(entity)s AND last_updated > now() - interval '15 minutes'
    """
).format(MESSAGE)

# In the order of the schema's index of equal events: it knows at once that a long queue has no event of an archive.
_ANY_QUEUED = """
    SELECT FROM artwork_indexer.event_queue
    WHERE state = 'queued' AND entity_type = %(entity)s::artwork_indexer.indexable_entity_type
    ORDER BY action, message LIMIT 1
"""

# The inner query walks the schema's index of state and creation, and its limit bounds the rows of all others. Rows of
# one transaction have one time, so a page is continued after a number of rows of that time.
_PAGE = """
    SELECT id, created, action, attempts, has_parents, CASE WHEN ready THEN {message} END, ready FROM (
        SELECT id, created, action::text AS action, attempts, depends_on IS NOT NULL AS has_parents, message,
            entity_type::text = %(entity)s AND attempts < {max_attempts}
            AND last_updated <= now() - attempts * make_interval(secs => %(backoff)s)
            AND {parents_completed} AS ready
        FROM (
            SELECT * FROM artwork_indexer.event_queue
            WHERE state = 'queued' AND created {since} %(since)s
            ORDER BY created {direction} OFFSET %(skip)s LIMIT %(rows)s
        ) AS event
    ) AS page
"""

Direction = Literal["oldest", "newest"]
_PAGES = {
    direction: SQL(_PAGE).format(
        message=MESSAGE, max_attempts=MAX_ATTEMPTS, parents_completed=PARENTS_COMPLETED, since=since, direction=order
    )
    for direction, since, order in (("oldest", SQL(">="), SQL("ASC")), ("newest", SQL("<="), SQL("DESC")))
}
_ENDS = {"oldest": "-infinity", "newest": "infinity"}

# The copies of some images that have not ended.
_COPIES = SQL(" UNION ALL ").join(
    SQL(
        "SELECT id, {message} FROM artwork_indexer.event_queue WHERE state = {state} AND action = 'copy_image'"
        " AND entity_type = %(entity)s::artwork_indexer.indexable_entity_type"
        " AND (message -> 'artwork_id') = ANY(%(images)s::jsonb[])"
    ).format(message=MESSAGE, state=state)
    for state in ("queued", "running")
)

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
        WHERE id = ANY(%(ids)s) AND state::text = 'queued' AND {}
        FOR UPDATE OF event SKIP LOCKED
    ))
    RETURNING id
    """
).format(PARENTS_COMPLETED)

#: The job of each action, and the arguments of its task by the names that an event has for them. A `copy_image` is a
#: move that keeps its source: an event of its own deletes that.
_JOBS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "index": ("index", {"gid": "gid"}),
    "copy_image": ("move", {"artwork_id": "id", "old_gid": "old_gid", "new_gid": "new_gid", "suffix": "suffix"}),
    "delete_image": ("delete", {"artwork_id": "id", "gid": "gid", "suffix": "suffix"}),
    "deindex": ("delete", {"gid": "gid"}),
}


@dataclass(frozen=True, slots=True)
class ArtEvent:
    """One row of the table. `message` has the value None if it holds no JSON object, or cannot be read.

    `failed_runs` are those before the run that its message begins. Their reasons stay in the database.
    """

    message: Mapping[str, Any] | None
    id: int
    created: datetime
    action: str
    failed_runs: int
    has_parents: bool

    @property
    def items(self) -> set[str]:
        """The gids that it is about."""
        return _items_of(self.message)

    def outgoing(self, exchange: str) -> Outgoing:
        """Return the message of the job that carries it out, whose retry budget is what the event has left.

        Raises InvalidJob for an unknown action, and for a wrong message.
        """
        if self.action not in _JOBS:
            raise InvalidJob(f"event {self.id}: unknown action {self.action}")
        if self.message is None:
            expected = f"no JSON object of at most {LONGEST_MESSAGE:,} characters and {MAX_NESTING} levels"
            raise InvalidJob(f"event {self.id}: {self.action} whose message is {expected}")
        kind, names = _JOBS[self.action]
        if missing := sorted(names.keys() - self.message.keys()):
            raise InvalidJob(f"event {self.id}: {self.action} without {', '.join(missing)}")
        job = jobs.job_of(kind, (), {argument: self.message[name] for name, argument in names.items()})
        headers = {EVENT: self.id, RETRIES: max(0, MAX_ATTEMPTS - 1 - self.failed_runs)}
        if self.failed_runs:
            headers[ATTEMPTS] = self.failed_runs
        return jobs.message(job, exchange, str(uuid.uuid4()), headers=headers)


class ArtEventPublisher:
    """Publishes the events of one archive that are ready, and queues those again whose message was lost.

    Places go to the oldest events. While the queue is longer than one page, half of them go to the newest `index`: a
    new upload does not wait behind a backlog. An `index` may overtake every other event of its item, since it
    writes what the database has when it runs.
    """

    def __init__(
        self, project: Project, publish: Publish, *, backoff: float, is_paused: Callable[[], bool] = lambda: False
    ) -> None:
        """After a failed run an event waits `backoff` seconds for each run so far.

        Nothing is published while `is_paused`, which is called in each turn: what is handed back must stay queued.
        """
        self.exchange = project.prefix
        #: Whether the last poll of the table ended before its end, and found too few events that are ready.
        self.unfinished = False
        self._publish, self._is_paused = publish, is_paused
        self._values: Mapping[str, Any] = {"entity": project.entity, "backoff": backoff}
        self._in_flight: set[int] = set()
        self._ended: deque[tuple[float, int]] = deque()
        #: Where the next poll goes on that found too few ready events: after a number of rows of a time.
        self._positions: dict[str, tuple[Any, int]] = {}

    def publish_ready(self, connection: Connection) -> int:
        """Publish the messages of events that are ready, mark these running, and return their number.

        Those of one item are run one after the other, in their order; a retried one does not hold up others. One
        reader publishes at a time, so it sees what others published: the order holds for any number of readers. The
        transaction ends when the broker has confirmed all. A stop in between publishes them again, and the first
        message is dropped. Raises the errors of `publish`.
        """
        with self._turn(connection) as is_taken:
            chosen = self._choose(connection) if is_taken and not self._is_paused() else []
            if not chosen:
                return 0
            ids = {id for (id,) in connection.execute(_TAKE_CHOSEN, {"ids": [each.id for each in chosen]})}
            self._publish_events(connection, [event for event in chosen if event.id in ids])
            return len(ids)

    def queue_lost(self, connection: Connection, *, idle: Callable[[str], bool], seconds: float) -> int:
        """Queue running events again whose last run began, or could have begun, `seconds` ago; return their number.

        `idle` returns whether a work queue is empty. While it is not, its messages may just be waiting.
        """
        actions = [action for action, (kind, _) in _JOBS.items() if idle(f"{self.exchange}.{kind}")]
        with self._turn(connection) as is_taken:
            return event_table.queue_lost(connection, self._values["entity"], actions, seconds) if is_taken else 0

    @contextmanager
    def _turn(self, connection: Connection) -> Iterator[bool]:
        """Run the block in a transaction; yield whether no other reader publishes events of the archive meanwhile.

        Its statements and pauses are limited: it is on MusicBrainz's primary.
        """
        limits = {"idle": f"{_IDLE_SECONDS}s", "statement": f"{_STATEMENT_SECONDS}s"}
        with connection.transaction():
            *_, is_taken = connection.execute(_BEGIN_TURN, {**self._values, **limits}).fetchone() or (False,)
            yield is_taken

    def _publish_events(self, connection: Connection, events: Sequence[ArtEvent]) -> None:
        outgoing: list[Outgoing] = []
        for event in events:
            if event.action == "noop":
                # It asks for nothing, or for a failure: an operator's test of the table.
                if not (event.message and event.message.get("fail")):
                    event_table.complete(connection, event.id)
                elif not event_table.end_failed_run(connection, event.id, "Failure (no-op)"):
                    event_table.fail(connection, event.id, "")
                continue
            try:
                outgoing.append(event.outgoing(self.exchange))
            except InvalidJob as error:
                _log.error("Event %d failed, since it cannot become a message: %s", event.id, error)
                event_table.fail(connection, event.id, str(error))
        if outgoing:
            self._publish(outgoing)

    def _choose(self, connection: Connection) -> list[ArtEvent]:
        """Return the events to publish, one of each item at a time; in a transaction whose plans use indexes."""
        running = {id: _items_of(_object(text)) for id, text in connection.execute(_IN_FLIGHT, self._values)}
        now = time.monotonic()
        self._ended.append((now, len(self._in_flight - running.keys())))
        while self._ended[0][0] < now - _RATE_SECONDS:
            self._ended.popleft()
        self._in_flight = set(running)
        ended = sum(count for _, count in self._ended)
        places = max(MIN_IN_FLIGHT, min(MAX_IN_FLIGHT, ended)) - len(running)
        self.unfinished = False
        if places <= 0 or connection.execute(_ANY_QUEUED, self._values).fetchone() is None:
            return []
        busy = set[str]().union(*running.values())
        oldest, is_long = self._ready(connection, "oldest", places, busy)
        newest = self._ready(connection, "newest", places // 2, busy)[0] if is_long and places > 1 else []
        chosen = _one_of_each_item(newest, busy, places // 2)
        busy = busy.union(*(event.items for event in chosen))
        chosen += [event for event in _one_of_each_item(oldest, busy, places - len(chosen)) if event not in chosen]
        self._in_flight |= {event.id for event in chosen}
        return chosen

    def _ready(
        self, connection: Connection, direction: Direction, wanted: int, busy: Set[str]
    ) -> tuple[list[ArtEvent], bool]:
        """Return events that may be published, in order, and whether the queue goes on after the first page.

        Several pages are read until there are enough. Where all of them have too few, the next poll goes on after
        them, and begins again at the end of the queue.
        """
        since, skip = self._positions.pop(direction, (_ENDS[direction], 0))
        is_long = since != _ENDS[direction]
        size = max(_MIN_PAGE, 2 * wanted)
        found: list[ArtEvent] = []
        for _ in range(_MAX_PAGES):
            values = {**self._values, "since": since, "skip": skip, "rows": size}
            rows = connection.execute(_PAGES[direction], values).fetchall()
            ready = [ArtEvent(_object(text), *columns) for *columns, text, is_ready in rows if is_ready]
            if direction == "newest":
                ready = [event for event in ready if event.action == "index"]
            else:
                # Rows of one transaction have one time; the index has them in the order of their last update.
                ready.sort(key=attrgetter("created", "id"))
            found += self._without_waiting(connection, ready)
            if len(rows) < size:
                return found, is_long
            is_long = True
            if len(_one_of_each_item(found, busy, wanted)) == wanted:
                return found, is_long
            times = [created for _, created, *_ in rows]
            skip = times.count(times[-1]) + (skip if times[-1] == since else 0)
            since = times[-1]
        self._positions[direction] = since, skip
        self.unfinished = True
        return found, is_long

    def _without_waiting(self, connection: Connection, events: Sequence[ArtEvent]) -> list[ArtEvent]:
        """Return the events whose image does not wait for a copy.

        An image is copied after an earlier copy brought it to the item. A deletion waits for a later move of the same
        file, unless it is the deletion of a move, which has that for its parent.
        """
        about = [event.message or {} for event in events if event.action in ("copy_image", "delete_image")]
        # `true` is an int of Python's, but not of the table's.
        images = {str(each["artwork_id"]) for each in about if type(each.get("artwork_id")) is int}
        if not images:
            return list(events)
        rows = connection.execute(_COPIES, {**self._values, "images": list(images)})
        copies = [(id, _object(text) or {}) for id, text in rows]

        def waits(event: ArtEvent) -> bool:
            about = event.message or {}
            of_image = [(id, copy) for id, copy in copies if copy.get("artwork_id") == about.get("artwork_id")]
            if event.action == "copy_image":
                return any(id < event.id and copy.get("new_gid") == about.get("old_gid") for id, copy in of_image)
            is_alone = event.action == "delete_image" and not event.has_parents
            return is_alone and any(id > event.id and copy.get("old_gid") == about.get("gid") for id, copy in of_image)

        return [event for event in events if not waits(event)]


def _one_of_each_item(events: Sequence[ArtEvent], busy: Set[str], places: int) -> list[ArtEvent]:
    """Return the first events of items that are not busy, at most `places`. What comes first makes an item busy."""
    chosen: list[ArtEvent] = []
    taken = set(busy)
    for event in events:
        if len(chosen) == places:
            break
        if taken.isdisjoint(event.items):
            chosen.append(event)
        taken |= event.items
    return chosen


def _items_of(message: Mapping[str, Any] | None) -> set[str]:
    return {str(message[name]) for name in ("gid", "old_gid", "new_gid") if name in message} if message else set()


def _object(text: str) -> Mapping[str, Any] | None:
    """Return the object of a message; None for one that was cut, has too large a number or is nested too deeply."""
    try:
        value = read_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
