"""A queue of 20,000 events on a real PostgreSQL: what the reader visits of it, and which events come first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Composable

from app.broker.outgoing import Outgoing
from app.coverart import event_publisher
from app.coverart.event_publisher import ArtEventPublisher
from app.coverart.jobs import EVENT
from app.coverart.project import COVER_ART, EVENT_ART, Project
from tests.servers.musicbrainz import changes, database

pytestmark = pytest.mark.integration

QUEUED, COMPLETED, FAILED = 20_000, 50_000, 2_000

#: The message of an event of one release.
GID = '{"gid": "0a000000-0000-4000-8000-000000000001"}'

#: Rows of the table that a look may visit: it reads a page of 100, or a few of them.
MOST_ROWS = 3_000

#: Inserts that many events of releases, the oldest first. Those of one state are 100 ms apart, and long ago.
INSERT = """
    INSERT INTO artwork_indexer.event_queue (state, entity_type, action, message, attempts, created, last_updated)
    SELECT %(state)s, 'release', %(action)s, jsonb_build_object('gid', gen_random_uuid(), 'suffix', 'jpg',
        'artwork_id', number), %(attempts)s, %(since)s::timestamptz + number * interval '100 ms', %(updated)s
    FROM generate_series(1, %(count)s) AS number
"""


@dataclass
class LongQueue:
    """The table and what is published of it. `db` does what MusicBrainz and workers do, `connection` what a reader."""

    db: changes.Db
    connection: psycopg.Connection[tuple[Any, ...]]

    def fill(
        self, state: str, count: int, *, action: str = "index", attempts: int = 0, updated: str = "-infinity"
    ) -> None:
        values = {"state": state, "count": count, "action": action, "attempts": attempts, "updated": updated}
        self.db.execute(INSERT, {**values, "since": "2026-01-01"})

    def analyze(self) -> None:
        self.db.execute("ANALYZE artwork_indexer.event_queue")

    def publish(self, publisher: ArtEventPublisher, messages: list[Outgoing]) -> list[int]:
        """Publish once, and return the ids of the events."""
        messages.clear()
        publisher.publish_ready(self.connection)
        return [int(each.headers[EVENT]) for each in messages]

    def poll(self, publisher: ArtEventPublisher) -> int:
        """Publish once, and return how many rows of the table its statements visit."""
        watched = Watched(self)
        publisher.publish_ready(watched)  # type: ignore[arg-type]
        return watched.rows

    def visited(self, statement: Any, values: Any) -> int:
        """Return how many rows of the table the nodes of a statement's plan read, or read and left out.

        What the statement changed is undone.
        """
        with self.connection.transaction(force_rollback=True):
            statement = statement if isinstance(statement, Composable) else SQL(statement)
            explained = SQL("EXPLAIN (ANALYZE, FORMAT JSON) {}").format(statement)
            [[plan]] = self.connection.execute(explained, values).fetchall()
        return sum(_rows(node) for node in _nodes(plan[0]["Plan"]) if "Scan" in node["Node Type"])


@dataclass
class Watched:
    """A reader's connection that explains each statement before it runs."""

    queue: LongQueue
    rows: int = 0

    def transaction(self) -> Any:
        return self.queue.connection.transaction()

    def execute(self, statement: Any, values: Any = None) -> Any:
        self.rows += self.queue.visited(statement, values)
        return self.queue.connection.execute(statement, values)


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _rows(node: dict[str, Any]) -> int:
    left_out = sum(count for name, count in node.items() if name.startswith("Rows Removed"))
    return int((node["Actual Rows"] + left_out) * node["Actual Loops"])


@pytest.fixture(scope="module")
def filled(event_queue_template: tuple[str, str]) -> Iterator[str]:
    """Yield the URL of a database with many completed and failed events."""
    with database.copy_of(*event_queue_template) as url:
        with psycopg.connect(url, autocommit=True) as db:
            queue = LongQueue(db, db)
            queue.fill("completed", COMPLETED)
            queue.fill("failed", FAILED, attempts=5)
            queue.analyze()
        yield url


@pytest.fixture
def queue(filled: str) -> Iterator[LongQueue]:
    with psycopg.connect(filled, autocommit=True) as db, psycopg.connect(filled, autocommit=True) as connection:
        db.execute("DELETE FROM artwork_indexer.event_queue WHERE state IN ('queued', 'running')")
        yield LongQueue(db, connection)


def new_publisher(project: Project = COVER_ART) -> tuple[ArtEventPublisher, list[Outgoing]]:
    messages: list[Outgoing] = []
    return ArtEventPublisher(project, messages.extend, backoff=3_600), messages


@pytest.mark.parametrize(("action", "analyzed"), [("index", True), ("index", False), ("delete_image", False)])
def test_a_look_at_a_long_queue_visits_rows_in_proportion_to_what_it_publishes(
    queue: LongQueue, action: str, analyzed: bool
) -> None:
    queue.fill("queued", QUEUED, action=action)
    # A burst is there before the statistics that describe it.
    if analyzed:
        queue.analyze()
    publisher, messages = new_publisher()
    assert queue.poll(publisher) < MOST_ROWS
    assert len(messages) == event_publisher.MIN_IN_FLIGHT
    # The other archive has no event among them, and begins no walk through the queue.
    publisher, messages = new_publisher(EVENT_ART)
    assert queue.poll(publisher) < 100
    assert (messages, publisher.unfinished) == ([], False)


def test_a_poll_after_a_burst_in_an_empty_table_goes_by_index_too(event_queue_template: tuple[str, str]) -> None:
    with (
        database.copy_of(*event_queue_template) as url,
        psycopg.connect(url, autocommit=True) as db,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        queue = LongQueue(db, connection)
        # The statistics are those of a table whose events have been forgotten.
        queue.fill("completed", 500)
        db.execute("DELETE FROM artwork_indexer.event_queue")
        queue.analyze()
        queue.fill("queued", 5_000)
        publisher, messages = new_publisher()
        assert queue.poll(publisher) < MOST_ROWS
        assert len(messages) == event_publisher.MIN_IN_FLIGHT


def test_a_new_upload_is_published_at_once_beside_a_long_queue_and_the_oldest_go_on(queue: LongQueue) -> None:
    queue.fill("queued", QUEUED)
    publisher, messages = new_publisher()
    assert len(queue.publish(publisher, messages)) == event_publisher.MIN_IN_FLIGHT
    upload = changes.queue_event(queue.db, "index", GID)
    # The workers have done one half, so there is room for as many.
    queue.db.execute(
        "UPDATE artwork_indexer.event_queue SET state = 'completed' WHERE id IN (SELECT id FROM"
        " artwork_indexer.event_queue WHERE state = 'running' LIMIT 10)"
    )
    [oldest] = queue.db.execute("SELECT min(id) FROM artwork_indexer.event_queue WHERE state = 'queued'").fetchall()
    published = queue.publish(publisher, messages)
    assert len(published) == 10
    assert upload in published
    assert oldest[0] in published


def test_events_that_may_not_run_hold_up_no_other_however_many_they_are(queue: LongQueue) -> None:
    # All of them failed just now, and wait for an hour.
    queue.fill("queued", 5_000, action="deindex", attempts=1, updated="now")
    deletion = changes.queue_event(queue.db, "deindex", GID)
    # They are older than 1,000 others that may not run either.
    queue.db.execute(
        INSERT, {"state": "queued", "count": 1_000, "action": "noop", "attempts": 5, "updated": "now", "since": "now"}
    )
    publisher, messages = new_publisher()
    looks = 0
    while not queue.publish(publisher, messages):
        assert publisher.unfinished
        looks += 1
    assert [message.headers[EVENT] for message in messages] == [deletion]
    assert looks > 1
