"""The state of MusicBrainz's event queue as operators see it, and whether readers may publish."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from redis import Redis

from app.coverart.event_table import connect
from app.coverart.musicbrainz import Connection, is_pooled
from app.coverart.project import PROJECTS, served_projects
from app.redis_state.client import PREFIX, get_quick_redis
from app.text.humanize import duration
from config.settings import Settings

#: Seconds without a sign of life after which the reader counts as down: two of its longest pauses.
READER_TIMEOUT = 70.0

#: Seconds after which an event that never ran has waited too long: a reader publishes new ones within seconds.
LONGEST_WAIT = 3_600.0

_SEEN = f"{PREFIX}art:reader:seen"
_PAUSED = f"{PREFIX}art:reader:paused"

_COUNTS = """
    SELECT entity_type::text, count(*) FILTER (WHERE state = 'queued'), count(*) FILTER (WHERE state = 'running'),
        coalesce(extract(epoch FROM now() - min(created) FILTER (WHERE state = 'queued' AND attempts = 0)), 0)::float8
    FROM artwork_indexer.event_queue WHERE state IN ('queued', 'running') GROUP BY entity_type
"""

# The kind of error that a reason begins with; numbers in it are those of events.
_FAILED = """
    SELECT event.entity_type::text, coalesce(left(regexp_replace(split_part(latest.failure_reason, ':', 1),
        '[0-9]+', 'N', 'g'), 100), 'no reason') AS reason, count(*)
    FROM artwork_indexer.event_queue AS event LEFT JOIN LATERAL (
        SELECT failure_reason FROM artwork_indexer.event_failure_reason AS failure
        WHERE failure.event = event.id ORDER BY failure.created DESC LIMIT 1
    ) AS latest ON true
    WHERE event.state = 'failed' GROUP BY 1, 2 ORDER BY 3 DESC
"""


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
class ArtEventQueueState:
    """The state of the table, and the seconds since a reader last read it: None if none ever did.

    `pooled` is whether ART_EVENT_QUEUE_URL leads through a pooler.
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

    def set_paused(self, paused: bool) -> None:
        """Have all readers publish nothing, also those that start later, or let them publish again."""
        if paused:
            self.redis.set(_PAUSED, 1)
        else:
            self.redis.delete(_PAUSED)

    def is_paused(self) -> bool:
        """Return whether readers must publish nothing."""
        return bool(self.redis.exists(_PAUSED))

    def may_publish(self) -> bool:
        """Return whether a reader runs that is not paused."""
        silent = self.seconds_silent()
        return silent is not None and silent < READER_TIMEOUT and not self.is_paused()


def event_queue_state(settings: Settings) -> ArtEventQueueState | None:
    """Return the state of the event queue; None for settings without one.

    Raises DatabaseUnavailable, DatabaseFailed and RedisError.
    """
    url = settings.art_event_queue_url.get_secret_value()
    if not url:
        return None
    with connect(url) as connection:
        return read_state(connection, settings)


def read_state(connection: Connection, settings: Settings) -> ArtEventQueueState:
    """Return the state of the event queue of an open connection; raises psycopg's errors and RedisError."""
    reader = ReaderStatus(get_quick_redis(settings.redis))
    silent, paused = reader.seconds_silent(), reader.is_paused()
    with connection.transaction():
        connection.execute("SET LOCAL statement_timeout = '10s'")
        counts = {entity: rest for entity, *rest in connection.execute(_COUNTS)}
        failed: dict[str, dict[str, int]] = {project.entity: {} for project in PROJECTS}
        for entity, reason, count in connection.execute(_FAILED):
            failed[entity][reason] = count
    exchanges = {project.entity: exchange for exchange, project in served_projects(settings).items()}
    entities = []
    for entity in failed:
        queued, running, oldest = counts.get(entity, (0, 0, 0.0))
        entities.append(EntityEvents(entity, exchanges.get(entity, ""), queued, running, oldest, failed[entity]))
    return ArtEventQueueState(tuple(entities), silent, paused, is_pooled(connection))
