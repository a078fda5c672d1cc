"""From a change in SQL to bytes in a real RabbitMQ: what triggers publish, and what the relay makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from kombu import Connection, Exchange, Queue

from app.coverart.project import COVER_ART, EVENT_ART, PROJECTS
from tests.servers.musicbrainz import changes, relay
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

OLD = "0a000000-0000-4000-8000-000000000001"
NEW = "0a000000-0000-4000-8000-000000000002"
BARE = "0a000000-0000-4000-8000-000000000003"
EVENT = "0e000000-0000-4000-8000-000000000004"
OTHER_EVENT = "0e000000-0000-4000-8000-000000000005"

#: (exchange, routing key, body)
Sent = tuple[str, str, bytes]


@dataclass(frozen=True, slots=True)
class QueueTap:
    """One queue that everything for either archive goes to, in its order."""

    broker: str
    NAME = "tap"

    def declare(self) -> None:
        with self._channel() as channel:
            for project in PROJECTS:
                for key in ("index", "move", "delete"):
                    Queue(self.NAME, Exchange(project.prefix), routing_key=key)(channel).declare()

    def take(self) -> list[Sent]:
        """Remove and return every message, each of which must have no property and no header."""
        with self._channel() as channel:
            messages = list(iter(lambda: channel.basic_get(self.NAME, no_ack=True), None))
        assert [message.properties for message in messages] == [{}] * len(messages)
        where: list[dict[str, Any]] = [message.delivery_info for message in messages]
        return [
            (at["exchange"], at["routing_key"], bytes(message.body or b""))
            for at, message in zip(where, messages, strict=True)
        ]

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        with Connection(self.broker, connect_timeout=5) as connection, connection.channel() as channel:
            yield channel


@pytest.fixture
def tap(broker_url: str) -> QueueTap:
    made = QueueTap(broker_url)
    made.declare()
    return made


@pytest.fixture
def db(musicbrainz_url: str) -> Iterator[changes.Db]:
    """Yield a connection to a database with three releases and two events and an empty queue of changes."""
    with psycopg.connect(musicbrainz_url) as connection:
        artist = changes.add_artist(connection, "Miles Davis")
        for gid in (OLD, NEW, BARE):
            changes.add_release(connection, "Kind of Blue", artist, gid=gid)
        changes.add_cover(connection, OLD, 10)
        changes.add_cover(connection, NEW, 20)
        changes.add_art(connection, COVER_ART, NEW, 21, mime_type="application/pdf")
        for gid in (EVENT, OTHER_EVENT):
            changes.add_event(connection, "Newport", gid=gid)
        changes.add_art(connection, EVENT_ART, EVENT, 50, mime_type="image/png")
        connection.commit()
        connection.execute("TRUNCATE amqp.outbox")
        connection.commit()
        yield connection


def index(gid: str, exchange: str = "cover-art-archive") -> Sent:
    return (exchange, "index", gid.encode())


def gone(body: str, exchange: str = "cover-art-archive") -> Sent:
    return (exchange, "delete", body.encode())


def moved(body: str, exchange: str = "cover-art-archive") -> Sent:
    return (exchange, "move", body.encode())


EVENTS = "event-art-archive"
CHANGES: dict[str, tuple[Callable[[changes.Db], object], list[Sent]]] = {
    "a release gets another name": (lambda db: changes.rename(db, COVER_ART, NEW, "x"), [index(NEW)]),
    "a release without art gets another name": (lambda db: changes.rename(db, COVER_ART, BARE, "x"), []),
    "an artist gets another name": (lambda db: changes.rename_artist(db, 1, "x"), [index(OLD), index(NEW), index(NEW)]),
    "an artist gets the name it has": (lambda db: changes.rename_artist(db, 1, "Miles Davis"), []),
    "a label is added": (lambda db: changes.add_label(db, NEW, "CL 1355"), [index(NEW)]),
    "a first image is added": (lambda db: changes.add_art(db, COVER_ART, BARE, 30), [index(BARE)]),
    "an image of two types is added": (
        lambda db: changes.add_art(db, COVER_ART, BARE, 30, types=(1, 2)),
        [index(BARE)] * 3,
    ),
    "an image gets another comment": (lambda db: changes.comment_on(db, COVER_ART, 10, "x"), [index(OLD)]),
    "an image gets another type": (lambda db: changes.set_types(db, COVER_ART, 10, [2]), [index(OLD)] * 2),
    "an image goes to the end": (lambda db: changes.put_at(db, COVER_ART, 20, 9), [index(NEW)] * 3),
    "an image goes": (lambda db: changes.remove_art(db, COVER_ART, 10), [index(OLD)]),
    "a release is merged": (
        lambda db: changes.merge(db, COVER_ART, OLD, NEW),
        [moved(f"10\n{OLD}\n{NEW}\njpg\n"), index(NEW), gone(f"index.json\n{OLD}")],
    ),
    "a release goes": (
        lambda db: changes.delete(db, COVER_ART, NEW),
        [gone(f"20\n{NEW}\njpg"), gone(f"21\n{NEW}\npdf"), gone(f"index.json\n{NEW}")],
    ),
    "a release without art goes": (lambda db: changes.delete(db, COVER_ART, BARE), [gone(f"index.json\n{BARE}")]),
    "an event gets another name": (lambda db: changes.rename(db, EVENT_ART, EVENT, "x"), [index(EVENT, EVENTS)]),
    "an event is merged": (
        lambda db: changes.merge(db, EVENT_ART, EVENT, OTHER_EVENT),
        [
            moved(f"50\n{EVENT}\n{OTHER_EVENT}\npng\n", EVENTS),
            index(OTHER_EVENT, EVENTS),
            gone(f"index.json\n{EVENT}", EVENTS),
        ],
    ),
    "an event goes": (
        lambda db: changes.delete(db, EVENT_ART, EVENT),
        [gone(f"50\n{EVENT}\npng", EVENTS), gone(f"index.json\n{EVENT}", EVENTS)],
    ),
}


def outbox(db: changes.Db) -> int:
    with db.transaction():
        return len(db.execute("SELECT FROM amqp.outbox").fetchall())


@pytest.mark.parametrize("change_name", CHANGES)
def test_a_change_puts_its_bytes_on_the_broker_without_any_property(
    change_name: str, musicbrainz_url: str, db: changes.Db, tap: QueueTap
) -> None:
    change, expected = CHANGES[change_name]
    change(db)
    db.commit()
    with relay.running(musicbrainz_url, tap.broker):
        eventually(lambda: outbox(db) == 0, "all is sent")
    assert tap.take() == expected
