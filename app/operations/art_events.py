"""Acts on MusicBrainz's event queue: pause and resume its reader, queue events again, hand them to another indexer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from app.broker.dead_letters import DeadSets
from app.coverart import event_rows
from app.coverart.event_record import connect
from app.coverart.event_rows import EventRow, EventState, Requeued
from app.coverart.jobs import event_of
from app.coverart.musicbrainz import Connection
from app.coverart.reader_status import ReaderStatus
from app.errors import ArtNotServed, EventsInUse, NoSuchEvent
from app.messages.dead_sets import dead_sets
from app.operations.operations import Operations

_SUBJECT = "event queue"


def pause_reader(ops: Operations, *, why: str = "") -> None:
    """Have the reader publish no event until it is resumed. Jobs of published ones go on."""
    with ops.act("pause events", _SUBJECT, why=why):
        ReaderStatus(ops.redis).pause()


def resume_reader(ops: Operations, *, why: str = "") -> None:
    """Let the reader publish events again."""
    with ops.act("resume events", _SUBJECT, why=why):
        ReaderStatus(ops.redis).resume()


def list_events(ops: Operations, state: EventState, *, limit: int) -> list[EventRow]:
    """Return the oldest events of a state; raises ArtNotServed, and as `musicbrainz.connect`."""
    with _table(ops) as connection:
        return event_rows.list_events(connection, state, limit=limit)


def find_event(ops: Operations, ident: int) -> EventRow:
    """Return an event; raises NoSuchEvent, and as `list_events`."""
    with _table(ops) as connection:
        for event in event_rows.find_events(connection, [ident]):
            return event
    raise NoSuchEvent(f"event {ident}: the table does not have it")


def requeue(ops: Operations, ids: Sequence[int] | None, *, dry_run: bool = False, why: str = "") -> Requeued:
    """Queue failed events again, all of them for None, and remove their dead letters; with `dry_run` change nothing.

    Raises NoSuchEvent, before anything is changed, for an id that is no failed event.
    """
    with _table(ops) as connection:
        if dry_run:
            return _requeued(connection, ids, dry_run=True)
        with ops.act("requeue events", _SUBJECT, why=why) as act:
            done = _requeued(connection, ids)
            removed = _forget_letters(ops, set(done.ids))
            act.result = f"{done}; {removed:,} dead letters removed"
    return done


def hand_back(ops: Operations, *, dry_run: bool = False, why: str = "") -> Requeued:
    """Queue running events again for the indexer that takes the table over; with `dry_run` change nothing.

    Raises EventsInUse while a reader publishes: it would publish them again at once.
    """
    with _table(ops) as connection:
        if dry_run:
            return event_rows.hand_back(connection, dry_run=True)
        with ops.act("hand back events", _SUBJECT, why=why) as act:
            if ReaderStatus(ops.redis).may_publish():
                raise EventsInUse("the event reader publishes events: pause it first (`perennial caa events pause`)")
            done = event_rows.hand_back(connection)
            act.result = str(done)
    return done


def _requeued(connection: Connection, ids: Sequence[int] | None, *, dry_run: bool = False) -> Requeued:
    with connection.transaction():
        states = {event.id: event.state for event in event_rows.find_events(connection, ids or ())}
        for ident in ids or ():
            if states.get(ident) != "failed":
                found = f"is {states[ident]}, and not failed" if ident in states else "is not in the table"
                raise NoSuchEvent(f"event {ident} {found}")
        return event_rows.requeue_failed(connection, ids, dry_run=dry_run)


def _forget_letters(ops: Operations, events: set[int]) -> int:
    """Remove the dead letters of events from the served archives' dead sets; return their number."""
    names = [f"{exchange}.failed" for exchange in ops.settings.art_exchanges] if events else []
    return sum(_forget(dead_sets(ops.settings).only(name), events) for name in names)


def _forget(sets: DeadSets, events: set[int]) -> int:
    concerned = {letter.id for letter in sets.iter_letters() if event_of(letter.delivery.headers) in events}
    return sets.forget(lambda letter: letter.id in concerned) if concerned else 0


@contextmanager
def _table(ops: Operations) -> Iterator[Connection]:
    url = ops.settings.event_queue_url.get_secret_value()
    if not url:
        raise ArtNotServed("no event queue: EVENT_QUEUE_URL is empty")
    with connect(url) as connection:
        yield connection
