"""MusicBrainz's event queue as operators see and change it: its state, its rows, and whether readers may publish."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from psycopg.sql import SQL
from redis import Redis

from app.broker.failure import MAX_MESSAGE
from app.coverart.event_choice import MESSAGE
from app.coverart.event_record import connect, queue_again
from app.coverart.musicbrainz import Connection, is_pooled
from app.coverart.project import PROJECTS, served
from app.errors import ActRefused
from app.redis_state.client import PREFIX, get_quick_redis
from app.text.phrases import duration
from config.settings import Settings

#: Seconds without a sign of life after which the reader counts as down: two of its longest pauses.
READER_TIMEOUT = 70.0

#: Seconds after which an event that never ran has waited too long: a reader publishes new ones within seconds.
LONGEST_WAIT = 3_600.0

#: Seconds that the database may take to count.
_COUNT_SECONDS = 10

_SEEN = f"{PREFIX}art:reader:seen"
_PAUSED = f"{PREFIX}art:reader:paused"

EventState = Literal["queued", "running", "failed", "completed"]

_COUNTS = SQL(
    """
    SELECT entity_type::text, count(*) FILTER (WHERE state = 'queued'), count(*) FILTER (WHERE state = 'running'),
        coalesce(extract(epoch FROM now() - min(created) FILTER (WHERE state = 'queued' AND attempts = 0)), 0)::float8
    FROM artwork_indexer.event_queue WHERE state IN ('queued', 'running') GROUP BY entity_type
    """
)

# The kind of error that a reason begins with; numbers in it are those of events.
_FAILED = SQL(
    """
    SELECT event.entity_type::text, coalesce(left(regexp_replace(split_part(latest.failure_reason, ':', 1),
        '[0-9]+', 'N', 'g'), 100), 'no reason') AS reason, count(*)
    FROM artwork_indexer.event_queue AS event LEFT JOIN LATERAL (
        SELECT failure_reason FROM artwork_indexer.event_failure_reason AS failure
        WHERE failure.event = event.id ORDER BY failure.created DESC LIMIT 1
    ) AS latest ON true
    WHERE event.state = 'failed' GROUP BY 1, 2 ORDER BY 3 DESC
    """
)

_LIMIT = SQL("SELECT set_config('statement_timeout', %(ms)s, true)")

_ROWS = SQL(
    """
    SELECT id, state::text, entity_type::text, action::text, {message}, coalesce(depends_on, '{{}}'),
        extract(epoch FROM created)::float8, attempts, extract(epoch FROM last_updated)::float8, ARRAY(
            SELECT left(failure_reason, {length}) FROM artwork_indexer.event_failure_reason AS failure
            WHERE failure.event = event.id ORDER BY failure.created
        )
    FROM artwork_indexer.event_queue AS event
    """
).format(message=MESSAGE, length=MAX_MESSAGE)

_GIVEN = _ROWS + SQL("WHERE id = ANY(%(ids)s) ORDER BY id")
_LISTED = {
    "oldest": _ROWS + SQL("WHERE state::text = %(state)s ORDER BY created, id LIMIT %(limit)s"),
    "latest": _ROWS + SQL("WHERE state::text = %(state)s ORDER BY last_updated DESC, id DESC LIMIT %(limit)s"),
}

_LOCK_ALL = SQL(
    "SELECT id FROM artwork_indexer.event_queue WHERE state = %(state)s AND (%(ids)s::bigint[] IS NULL"
    " OR id = ANY(%(ids)s)) ORDER BY id FOR UPDATE"
)


@dataclass(frozen=True, slots=True)
class EventRow:
    """One row of the table; `message` is its JSON as text, `reasons` are those of its failures, the oldest first.

    Times are in seconds since 1970. A failed event without an attempt failed with a parent, and comes back with it.
    """

    id: int
    state: str
    entity: str
    action: str
    message: str
    depends_on: tuple[int, ...]
    created: float
    attempts: int
    last_updated: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Requeued:
    """Events that were queued again, and those that an equal queued event replaced, by the id of that one."""

    ids: tuple[int, ...]
    replaced: dict[int, int]

    def __str__(self) -> str:
        merged = f", {len(self.replaced):,} of them merged with an equal queued event" if self.replaced else ""
        return f"{len(self.ids):,} events queued again{merged}"


@dataclass(frozen=True, slots=True)
class EntityEvents:
    """The events of releases, or those of events: `exchange` is that of their archive, empty if it is not served.

    `oldest` is the age in seconds of the oldest queued event that never ran, 0 without one. `failed` has the number of
    failed events by the kind of their last error.
    """

    entity: str
    exchange: str
    queued: int
    running: int
    oldest: float
    failed: Mapping[str, int]

    def __str__(self) -> str:
        oldest = f", the oldest for {duration(self.oldest)}" if self.oldest else ""
        return f"{self.queued:,} queued{oldest}; {self.running:,} running; {sum(self.failed.values()):,} failed"


@dataclass(frozen=True, slots=True)
class EventQueueState:
    """The state of the table, and the seconds since a reader last read it: None if none ever did.

    `pooled` is whether EVENT_QUEUE_URL leads through a pooler.
    """

    entities: tuple[EntityEvents, ...]
    seconds_silent: float | None
    paused: bool
    pooled: bool

    @property
    def problems(self) -> tuple[str, ...]:
        """What does not work now, each with its remedy."""
        waiting = sum(each.queued for each in self.entities)
        found: list[str] = []
        if self.seconds_silent is None or self.seconds_silent > READER_TIMEOUT:
            last = "never" if self.seconds_silent is None else f"{duration(self.seconds_silent)} ago"
            found.append(f"no event reader runs (last sign of life: {last}), and {waiting:,} events wait")
        for each in self.entities:
            if not each.exchange and each.queued:
                text = f"{each.queued:,} events of the type {each.entity} wait, and no archive serves them"
                found.append(f"{text}: set its exchange and the keys of its archive")
            elif each.oldest > LONGEST_WAIT and not self.paused:
                found.append(f"an event of the type {each.entity} has waited for {duration(each.oldest)} without a run")
        return tuple(found)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What an operator should look at."""
        found = ["the event reader is paused: `perennial caa events resume`"] if self.paused else []
        for each in self.entities:
            if each.failed:
                reasons = ", ".join(f"{count:,} {reason}" for reason, count in each.failed.items())
                number = f"{sum(each.failed.values()):,} failed events of the type {each.entity}"
                found.append(f"{number} ({reasons}): `perennial caa events list --state failed`")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class ReaderStatus:
    """What all readers of events and their operators tell each other in Redis; every method raises RedisError."""

    redis: Redis = field(repr=False)

    def touch(self) -> None:
        """Note that a reader has just read the table."""
        self.redis.set(_SEEN, time.time())

    def seconds_silent(self) -> float | None:
        """Return the seconds since a reader last read the table; None if none ever did."""
        seen = self.redis.get(_SEEN)
        return None if seen is None else max(0.0, time.time() - float(str(seen)))

    def pause(self) -> None:
        """Have all readers publish nothing until `resume`, also those that start later."""
        self.redis.set(_PAUSED, 1)

    def resume(self) -> None:
        """Let readers publish again."""
        self.redis.delete(_PAUSED)

    def is_paused(self) -> bool:
        """Return whether readers must publish nothing."""
        return bool(self.redis.exists(_PAUSED))

    def may_publish(self) -> bool:
        """Return whether a reader runs that is not paused."""
        silent = self.seconds_silent()
        return silent is not None and silent < READER_TIMEOUT and not self.is_paused()


def event_queue_state(settings: Settings) -> EventQueueState | None:
    """Return the state of the event queue; None for settings without one.

    Raises DatabaseUnavailable, DatabaseFailed and RedisError.
    """
    url = settings.event_queue_url.get_secret_value()
    if not url:
        return None
    with connect(url) as connection:
        return read_state(connection, settings)


def read_state(connection: Connection, settings: Settings) -> EventQueueState:
    """Return the state of the event queue of an open connection; raises psycopg's errors and RedisError."""
    reader = ReaderStatus(get_quick_redis(settings.redis))
    silent, paused = reader.seconds_silent(), reader.is_paused()
    with connection.transaction():
        connection.execute(_LIMIT, {"ms": str(_COUNT_SECONDS * 1_000)})
        counts = {entity: rest for entity, *rest in connection.execute(_COUNTS)}
        failed: dict[str, dict[str, int]] = {project.entity: {} for project in PROJECTS}
        for entity, reason, count in connection.execute(_FAILED):
            failed[entity][reason] = count
    exchanges = {project.entity: exchange for exchange, project in served(settings).items()}
    entities = []
    for entity in failed:
        queued, running, oldest = counts.get(entity, (0, 0, 0.0))
        entities.append(EntityEvents(entity, exchanges.get(entity, ""), queued, running, oldest, failed[entity]))
    return EventQueueState(tuple(entities), silent, paused, is_pooled(connection))


def list_rows(
    connection: Connection, state: EventState, *, limit: int, order: Literal["oldest", "latest"] = "oldest"
) -> list[EventRow]:
    """Return the oldest events of a state, or those that were updated last."""
    return _rows(connection.execute(_LISTED[order], {"state": state, "limit": limit}))


def find_rows(connection: Connection, ids: Sequence[int]) -> list[EventRow]:
    """Return the events with these ids; raises ActRefused for an unknown one."""
    found = _rows(connection.execute(_GIVEN, {"ids": list(ids)}))
    for id in set(ids).difference(row.id for row in found):
        raise ActRefused(f"event {id}: the table does not have it")
    return found


def requeue(
    connection: Connection,
    state: Literal["failed", "running"],
    ids: Sequence[int] | None = None,
    *,
    dry_run: bool = False,
) -> Requeued:
    """Queue events of a state again, all of them for None: failed ones have all their runs again.

    Running ones are handed back: they lose no run, and are ready at once. This indexer then leaves their messages
    aside, and another one can take the table over. Raises ActRefused for an id that has another state.
    """
    with connection.transaction():
        for row in find_rows(connection, ids or ()):
            if row.state != state:
                raise ActRefused(f"event {row.id} is {row.state}, and not {state}")
        values = {"state": state, "ids": None if ids is None else list(ids)}
        found = tuple(id for (id,) in connection.execute(_LOCK_ALL, values))
        after: Literal["failure", "interruption"] = "failure" if state == "failed" else "interruption"
        return Requeued(found, {} if dry_run else queue_again(connection, found, after=after))


def _rows(rows: Any) -> list[EventRow]:
    return [EventRow(*map(_immutable, row)) for row in rows]


def _immutable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
