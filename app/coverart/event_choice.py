"""Which queued events to publish next, read in time that depends on their number and not on the length of the queue."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Literal, Self

from psycopg.sql import SQL

from app.broker.nesting import read_json
from app.coverart.event_record import MAX_ATTEMPTS
from app.coverart.musicbrainz import Connection

#: Events of an archive whose messages are in the broker at the same time: as many as ended in the last `_RATE_SECONDS`,
#: within these limits. So a new message waits about that long there, whether a job takes a millisecond or a second.
#: Other events wait in the table, where equal ones become one and a new one may be published first.
MIN_IN_FLIGHT, MAX_IN_FLIGHT = 20, 1_000
_RATE_SECONDS = 5.0

#: Minutes after which a running event counts no more: its worker was killed, or its service is away for long.
_FORGOTTEN_AFTER = 15

#: Rows that are read at a time, beside two for each event that may be published, and how many times in one look.
_MIN_PAGE, _MAX_PAGES = 100, 8

#: Characters of an event's message that are read; a valid one has about 150.
LONGEST_MESSAGE = 10_000

# It is read as text, since psycopg would raise an error for a number or a nesting that Python cannot read.
MESSAGE = SQL("left(message::text, {length})").format(length=LONGEST_MESSAGE)

_IN_FLIGHT = SQL(
    "SELECT id, {message} FROM artwork_indexer.event_queue WHERE state = 'running' AND entity_type::text = %(entity)s"
    " AND last_updated > now() - make_interval(mins => %(minutes)s)"
).format(message=MESSAGE)

# In the order of the schema's index of equal events: it knows at once that a long queue has no event of an archive.
_ANY_QUEUED = SQL(
    "SELECT FROM artwork_indexer.event_queue WHERE state = 'queued'"
    " AND entity_type = %(entity)s::artwork_indexer.indexable_entity_type ORDER BY action, message LIMIT 1"
)

# The inner query walks the schema's index of state and creation, and its limit bounds the rows of all others. Rows of
# one transaction have one time, so a page is continued after a number of rows of that time.
_PAGE = """
    SELECT id, created, action, attempts, has_parents, CASE WHEN ready THEN {message} END, ready FROM (
        SELECT id, created, action::text AS action, attempts, depends_on IS NOT NULL AS has_parents, message,
            entity_type::text = %(entity)s AND attempts < %(max_attempts)s
            AND last_updated <= now() - attempts * make_interval(secs => %(backoff)s)
            AND (depends_on IS NULL OR NOT EXISTS (
                SELECT FROM artwork_indexer.event_queue AS parent
                WHERE parent.id = ANY(event.depends_on) AND parent.state <> 'completed'
            )) AS ready
        FROM (
            SELECT * FROM artwork_indexer.event_queue
            WHERE state = 'queued' AND created {since} %(since)s
            ORDER BY created {direction} OFFSET %(skip)s LIMIT %(rows)s
        ) AS event
    ) AS page
"""

Direction = Literal["oldest", "newest"]
_PAGES = {
    "oldest": SQL(_PAGE).format(message=MESSAGE, since=SQL(">="), direction=SQL("ASC")),
    "newest": SQL(_PAGE).format(message=MESSAGE, since=SQL("<="), direction=SQL("DESC")),
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


@dataclass(frozen=True, slots=True)
class Event:
    """One row of the table. Its message may be any JSON; None if it cannot be read.

    `failed_runs` are those before the run that its message begins. Their reasons stay in the database.
    """

    id: int
    created: datetime
    action: str
    failed_runs: int
    has_parents: bool
    message: Any

    @classmethod
    def of(cls, id: int, created: datetime, action: str, failed_runs: int, has_parents: bool, text: str) -> Self:
        """Return the event of the columns of a row; `text` is its message."""
        return cls(id, created, action, failed_runs, has_parents, decoded(text))

    @property
    def items(self) -> set[str]:
        """The gids that it is about."""
        return items_of(self.message)


class EventChoice:
    """Chooses events of one archive, `entity` in the table, and remembers how many end.

    Places go to the oldest events. While the queue is longer than one page, half of them go to the newest `index`: a
    new upload does not wait behind a backlog. An `index` may overtake every other event of its item, since it
    writes what the database has when it runs.
    """

    def __init__(self, entity: str, backoff: float) -> None:
        self.entity = entity
        self.unfinished = False
        self._values = {"entity": entity, "minutes": _FORGOTTEN_AFTER, "max_attempts": MAX_ATTEMPTS, "backoff": backoff}
        self._in_flight: set[int] = set()
        self._ended: deque[tuple[float, int]] = deque()
        #: Where the next look goes on that found too few ready events: after a number of rows of a time.
        self._positions: dict[Direction, tuple[Any, int]] = {}

    def choose(self, connection: Connection) -> list[Event]:
        """Return the events to publish, one of each item at a time; in a transaction whose plans use indexes."""
        running = {id: items_of(decoded(about)) for id, about in connection.execute(_IN_FLIGHT, self._values)}
        places = self._places(set(running))
        self.unfinished = False
        if places <= 0 or connection.execute(_ANY_QUEUED, self._values).fetchone() is None:
            return []
        busy = set[str]().union(*running.values())
        oldest, is_long = self._ready(connection, "oldest", places, busy)
        newest, _ = self._ready(connection, "newest", places // 2, busy) if is_long and places > 1 else ([], False)
        chosen = _one_of_each_item(newest, busy, places // 2)
        busy = busy.union(*(event.items for event in chosen))
        chosen += [event for event in _one_of_each_item(oldest, busy, places - len(chosen)) if event not in chosen]
        self._in_flight |= {event.id for event in chosen}
        return chosen

    def _places(self, running: set[int]) -> int:
        """Return how many events may be published, from how many ended lately."""
        now = time.monotonic()
        self._ended.append((now, len(self._in_flight - running)))
        while self._ended[0][0] < now - _RATE_SECONDS:
            self._ended.popleft()
        self._in_flight = running
        ended = sum(count for _, count in self._ended)
        return max(MIN_IN_FLIGHT, min(MAX_IN_FLIGHT, ended)) - len(running)

    def _ready(
        self, connection: Connection, direction: Direction, wanted: int, busy: Set[str]
    ) -> tuple[list[Event], bool]:
        """Return events that may be published, in order, and whether the queue goes on after the first page.

        Several pages are read until there are enough. Where all of them have too few, the next look goes on after
        them, and begins again at the end of the queue.
        """
        since, skip = self._positions.pop(direction, (_ENDS[direction], 0))
        is_long = since != _ENDS[direction]
        size = max(_MIN_PAGE, 2 * wanted)
        found: list[Event] = []
        for _ in range(_MAX_PAGES):
            values = {**self._values, "since": since, "skip": skip, "rows": size}
            rows = connection.execute(_PAGES[direction], values).fetchall()
            ready = [Event.of(*columns) for *columns, is_ready in rows if is_ready]
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

    def _without_waiting(self, connection: Connection, events: Sequence[Event]) -> list[Event]:
        """Return the events whose image does not wait for a copy.

        An image is copied after an earlier copy brought it to the item. A deletion that is no part of a move waits for
        a later move of the same file.
        """
        about = [event.message for event in events if event.action in ("copy_image", "delete_image")]
        images = {str(each["artwork_id"]) for each in about if _has_image(each)}
        if not images:
            return list(events)
        values = {**self._values, "images": list(images)}
        copies = [(id, decoded(text)) for id, text in connection.execute(_COPIES, values)]
        return [event for event in events if not any(_waits(event, id, copy) for id, copy in copies)]


def _waits(event: Event, copy_id: int, copy: Any) -> bool:
    """Return whether an event waits for a copy. The deletion of a move has that for its parent."""
    about = event.message
    if not (isinstance(about, dict) and isinstance(copy, dict)) or about.get("artwork_id") != copy.get("artwork_id"):
        return False
    if event.action == "copy_image":
        return copy_id < event.id and copy.get("new_gid") == about.get("old_gid")
    is_later = event.action == "delete_image" and copy_id > event.id and not event.has_parents
    return is_later and copy.get("old_gid") == about.get("gid")


def _one_of_each_item(events: Sequence[Event], busy: Set[str], places: int) -> list[Event]:
    """Return the first events of items that are not busy, at most `places`. What comes first makes an item busy."""
    chosen: list[Event] = []
    taken = set(busy)
    for event in events:
        if len(chosen) == places:
            break
        if taken.isdisjoint(event.items):
            chosen.append(event)
        taken |= event.items
    return chosen


def items_of(about: Any) -> set[str]:
    """Return the gids that an event is about; none for a message that is no JSON object."""
    if not isinstance(about, dict):
        return set()
    return {str(about[name]) for name in ("gid", "old_gid", "new_gid") if name in about}


def decoded(message: str) -> Any:
    """Return the value of a message; None for one that was cut, has too large a number or is nested too deeply."""
    try:
        return read_json(message)
    except ValueError:
        return None


def _has_image(about: Any) -> bool:
    return isinstance(about, dict) and isinstance(about.get("artwork_id"), int)
