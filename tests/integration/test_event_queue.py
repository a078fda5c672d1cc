"""Events of a real PostgreSQL become messages: which are ready, what their rows record, and what a stop leaves."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from app.broker.errors import Postpone, PublishFailed
from app.broker.failure import MAX_MESSAGE
from app.broker.outgoing import Outgoing
from app.broker.publishing import Publisher
from app.coverart import event_publisher, event_run, event_table, musicbrainz
from app.coverart.event_publisher import ArtEventPublisher, Publish
from app.coverart.event_run import ArtEventRun
from app.coverart.event_table import MAX_ATTEMPTS
from app.coverart.indexer import Indexer
from app.coverart.jobs import EVENT, Index, parse
from app.coverart.musicbrainz import Connection
from app.coverart.outages import FREE_RUNS, MAX_FREE_RUNS
from app.coverart.project import COVER_ART, EVENT_ART, Project
from app.errors import ArtNotServed, DatabaseUnavailable, ImageInUse
from app.messages.art_event_reader import ArtEventReader
from app.redis_state.client import get_redis
from app.topology.queues import art_queues
from config.settings import Settings
from tests.servers.archive import ArchiveServer, error
from tests.servers.musicbrainz import changes, database
from tests.support.broker import Broker
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

A = "0a000000-0000-4000-8000-000000000001"
B = "0a000000-0000-4000-8000-000000000002"
C, D, E, F = (f"0c000000-0000-4000-8000-00000000000{number}" for number in range(4))


@dataclass
class Table:
    """The table, as an operator sees and changes it; `url` is where the code under test finds it."""

    url: str
    db: changes.Db
    published: list[Outgoing] = field(default_factory=list)

    def add(self, action: str, message: str = "{}", *, parents: Sequence[int] = (), **columns: Any) -> int:
        return changes.queue_event(self.db, action, message, depends_on=list(parents) or None, **columns)

    def set(self, assignment: str, event: int) -> None:
        self.db.execute(f"UPDATE artwork_indexer.event_queue SET {assignment} WHERE id = %s", (event,))

    def states(self) -> dict[int, tuple[str, int]]:
        return changes.event_states(self.db)

    def reasons(self, event: int) -> list[str]:
        rows = self.db.execute(
            "SELECT failure_reason FROM artwork_indexer.event_failure_reason WHERE event = %s ORDER BY created",
            (event,),
        )
        return [reason for (reason,) in rows]

    def publish(self) -> list[int]:
        """Publish what is ready, and return the ids in the order of their messages."""
        messages: list[Outgoing] = []
        with musicbrainz.connect(self.url) as connection:
            publish_ready(connection, messages.extend)
        self.published += messages
        return [int(each.headers[EVENT]) for each in messages]

    def publish_lost(self, *, waiting: Sequence[str] = ()) -> list[int]:
        """Queue lost events again, and publish what is ready then."""
        with musicbrainz.connect(self.url) as connection:
            for project in (COVER_ART, EVENT_ART):
                publisher = ArtEventPublisher(project, self.published.extend, backoff=3_600)
                publisher.queue_lost(connection, idle=lambda queue: queue not in waiting, seconds=60)
        return self.publish()

    def begin(self, event: int, run: int) -> list[int] | None:
        with event_table.connect(self.url) as connection:
            return event_table.begin(connection, event, run)

    def complete(self, event: int) -> None:
        event_table.complete(self.db, event)

    def end_failed_run(self, event: int, reason: str) -> bool:
        return event_table.end_failed_run(self.db, event, reason)

    def fail(self, event: int, reason: str) -> None:
        event_table.fail(self.db, event, reason)


@pytest.fixture(scope="module")
def database_url(event_queue_template: tuple[str, str]) -> Iterator[str]:
    with database.copy_of(*event_queue_template) as url:
        yield url


@dataclass
class Art:
    """The items of releases A, which has image 1, and B, whose jobs are run as a worker does."""

    table: Table
    archive: ArchiveServer
    indexer: Indexer

    def move_image(self, gid: str) -> None:
        self.table.db.execute(
            "UPDATE cover_art_archive.cover_art SET release = found.id FROM musicbrainz.release AS found"
            " WHERE found.gid = %s AND cover_art.id = 1",
            (gid,),
        )

    def run(self, event: int) -> None:
        message = [each for each in self.table.published if each.headers[EVENT] == event][-1]
        job = parse(message.routing_key, message.body)
        ArtEventRun(self.table.url, event).handle(self.indexer, job, "id", message.headers)

    def files(self, gid: str) -> list[str]:
        """Return the files of an item as they were uploaded or copied."""
        return [name for name in self.archive.files(f"mbid-{gid}") if name in {f"mbid-{gid}-1.jpg", "index.json"}]


@pytest.fixture
def table(database_url: str) -> Iterator[Table]:
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("DELETE FROM artwork_indexer.event_queue")
        yield Table(database_url, db)


@pytest.fixture
def art(table: Table, settings: Settings) -> Iterator[Art]:
    with ArchiveServer() as archive:
        places = {"musicbrainz_url": SecretStr(table.url), **archive.settings}
        artist = changes.add_artist(table.db, "Miles Davis")
        for each in (A, B):
            changes.add_release(table.db, "Kind of Blue", artist, gid=each)
        changes.add_cover(table.db, A, 1)
        table.db.execute("DELETE FROM artwork_indexer.event_queue")
        archive.upload(f"mbid-{A}", f"mbid-{A}-1.jpg", b"picture")
        with get_redis(settings.redis) as redis:
            yield Art(table, archive, Indexer.of(COVER_ART.prefix, settings.model_copy(update=places), redis))
        for each in (A, B):
            changes.delete(table.db, COVER_ART, each)


def publish_ready(connection: Connection, publish: Publish, *projects: Project) -> int:
    served = projects or (COVER_ART, EVENT_ART)
    return sum(ArtEventPublisher(each, publish, backoff=3_600).publish_ready(connection) for each in served)


def gid(gid: str = A) -> str:
    return f'{{"gid": "{gid}"}}'


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def file(image: int, gid: str = A) -> str:
    return f'{{"artwork_id": {image}, "gid": "{gid}", "suffix": "jpg"}}'


def copied(image: int, old: str = A, new: str = B) -> str:
    return f'{{"artwork_id": {image}, "old_gid": "{old}", "new_gid": "{new}", "suffix": "png"}}'


def test_each_action_is_the_message_of_a_job_with_its_event_and_what_is_left_of_its_attempts(table: Table) -> None:
    index, copy = table.add("index", gid(C)), table.add("copy_image", copied(7))
    delete, deindex = table.add("delete_image", file(8, D)), table.add("deindex", gid(E))
    event = table.add("index", gid(C), entity_type="event")
    tried = table.add("index", gid(F), attempts=3, last_updated="2020-01-01")
    assert sorted(table.publish()) == [index, copy, delete, deindex, event, tried]
    sent = {each.headers[EVENT]: (each.exchange, each.routing_key, each.body) for each in table.published}
    assert sent == {
        index: ("cover-art-archive", "index", C.encode()),
        copy: ("cover-art-archive", "move", f"7\n{A}\n{B}\npng\n".encode()),
        delete: ("cover-art-archive", "delete", f"8\n{D}\njpg".encode()),
        deindex: ("cover-art-archive", "delete", f"index.json\n{E}".encode()),
        event: ("event-art-archive", "index", C.encode()),
        tried: ("cover-art-archive", "index", F.encode()),
    }
    headers = {each.headers[EVENT]: dict(each.headers) for each in table.published}
    assert headers[index] == {EVENT: index, "mb-retries": MAX_ATTEMPTS - 1}
    assert headers[tried] == {EVENT: tried, "mb-retries": 1, "perennial-attempts": 3}
    assert {state for state, _ in table.states().values()} == {"running"}
    assert table.publish() == []


def test_an_event_waits_for_its_parents_its_backoff_its_limit_and_its_archive(table: Table) -> None:
    parent = table.add("delete_image", file(1))
    table.add("index", gid(), parents=[parent])
    table.add("index", gid(B), attempts=2, last_updated="now")
    table.add("deindex", gid(B), attempts=MAX_ATTEMPTS, last_updated="2020-01-01")
    assert table.publish() == [parent]
    with musicbrainz.connect(table.url) as connection:
        event = table.add("index", gid(), entity_type="event")
        messages: list[Outgoing] = []
        publish_ready(connection, messages.extend, COVER_ART)
    assert (messages, table.states()[event]) == ([], ("queued", 0))


def test_an_image_is_neither_copied_before_it_arrives_nor_deleted_before_it_is_copied(table: Table) -> None:
    deletion = table.add("delete_image", file(1))
    first, second = table.add("copy_image", copied(1)), table.add("copy_image", copied(1, B, C))
    assert table.publish() == [first]
    assert table.end_failed_run(first, "it runs again in an hour")
    assert table.publish() == []
    table.set("last_updated = '2020-01-01'", first)
    assert table.publish() == [first]
    table.complete(first)
    assert table.publish() == [deletion, second]


def test_events_of_one_item_run_in_their_order_and_a_retried_one_holds_up_none(table: Table) -> None:
    delete, deindex, other = table.add("delete_image", file(1)), table.add("deindex", gid()), table.add("index", gid(B))
    assert table.publish() == [delete, other]
    assert table.publish() == []
    assert table.end_failed_run(delete, "HTTP 503")
    assert table.publish() == [deindex]


def test_a_stop_between_publishing_and_commit_publishes_again_and_loses_nothing(table: Table) -> None:
    event = table.add("index", gid())

    def stop(messages: Sequence[Outgoing]) -> None:
        table.published += messages
        raise PublishFailed("killed")

    with pytest.raises(PublishFailed), musicbrainz.connect(table.url) as connection:
        publish_ready(connection, stop)
    assert (len(table.published), table.states()[event]) == (1, ("queued", 0))
    # The message is in the broker, and is dropped: the event is published again.
    assert table.begin(event, 1) is None
    assert table.publish() == [event]
    assert table.begin(event, 1) == []
    table.complete(event)
    assert (table.publish(), table.states()[event]) == ([], ("completed", 1))
    assert table.begin(event, 1) is None


def test_a_worker_that_gets_the_message_before_the_reader_has_committed_waits_and_runs_it(table: Table) -> None:
    event = table.add("index", gid())
    begun: list[object] = []
    worker = threading.Thread(target=lambda: begun.append(table.begin(event, 1)))

    def publish(_: Sequence[Outgoing]) -> None:
        worker.start()
        waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        eventually(lambda: table.db.execute(waiting).fetchone() is not None, "the worker waits for the row")

    with musicbrainz.connect(table.url) as connection:
        publish_ready(connection, publish)
    worker.join()
    assert begun == [[]]


def test_of_two_readers_one_publishes_at_a_time_so_that_the_events_of_one_item_keep_their_order(table: Table) -> None:
    first = table.add("index", gid())
    meanwhile: list[list[int]] = []

    def publish(_: Sequence[Outgoing]) -> None:
        # This event came earlier, and a parent has just been completed.
        table.add("deindex", gid(), created="2020-01-01")
        table.add("index", gid(C), entity_type="event")
        meanwhile.append(table.publish())

    with musicbrainz.connect(table.url) as connection:
        publish_ready(connection, publish, COVER_ART)
    deindex, event = first + 1, first + 2
    # The other archive has its own turn. The item has one event at a time.
    assert meanwhile == [[event]]
    assert table.publish() == []
    table.complete(first)
    assert table.publish() == [deindex]


def test_a_reader_that_hangs_in_its_turn_loses_it_and_its_locks(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its statements before that come faster also on a busy machine.
    monkeypatch.setattr(event_publisher, "_IDLE_SECONDS", 3)
    event = table.add("index", gid())
    taken: list[int] = []

    def hang(_: Sequence[Outgoing]) -> None:
        monkeypatch.undo()
        taken.extend(eventually(table.publish, "the server ends the transaction that hangs"))

    with pytest.raises(DatabaseUnavailable), musicbrainz.connect(table.url) as connection:
        publish_ready(connection, hang)
    assert (taken, table.states()[event]) == ([event], ("running", 1))


def test_as_many_messages_are_in_the_broker_as_ended_lately_within_limits(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_publisher, "MIN_IN_FLIGHT", 2)
    monkeypatch.setattr(event_publisher, "MAX_IN_FLIGHT", 5)
    monkeypatch.setattr(event_publisher, "_RATE_SECONDS", 600.0)
    for number in range(20):
        table.add("delete_image", file(1, f"{number:02x}{A[2:]}"))
    reading = ArtEventPublisher(COVER_ART, lambda _: None, backoff=3_600)
    counts = []
    with musicbrainz.connect(table.url) as connection:
        for _ in range(4):
            counts.append(reading.publish_ready(connection))
            table.db.execute("UPDATE artwork_indexer.event_queue SET state = 'completed' WHERE state = 'running'")
        assert reading.publish_ready(connection) == 5
        # A killed worker's event does not take a place forever.
        table.db.execute("UPDATE artwork_indexer.event_queue SET last_updated = '2020-01-01' WHERE state = 'running'")
        assert reading.publish_ready(connection) == 20 - sum(counts) - 5
    assert counts == [2, 2, 4, 5]


def test_messages_of_another_archive_or_of_one_that_is_not_served_take_no_place(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_publisher, "MIN_IN_FLIGHT", 1)
    releases = [table.add("index", gid(each)) for each in (A, B)]
    event = table.add("index", gid(C), entity_type="event")
    table.set("state = 'running'", table.add("index", gid(D), entity_type="event"))
    with musicbrainz.connect(table.url) as connection:
        assert publish_ready(connection, lambda _: None, COVER_ART) == 1
    assert (table.states()[releases[0]], table.states()[releases[1]]) == (("running", 1), ("queued", 0))
    table.set("state = 'completed'", event + 1)
    assert table.publish() == [event]


def test_only_chosen_events_are_locked_until_the_broker_confirms(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_publisher, "MIN_IN_FLIGHT", 1)
    first, second = table.add("index", gid()), table.add("index", gid(B))
    unlocked: list[int] = []

    def publish(_: Sequence[Outgoing]) -> None:
        rows = table.db.execute("SELECT id FROM artwork_indexer.event_queue FOR UPDATE SKIP LOCKED")
        unlocked.extend(id for (id,) in rows)

    with musicbrainz.connect(table.url) as connection:
        assert publish_ready(connection, publish) == 1
    assert (unlocked, table.states()[first]) == ([second], ("running", 1))


def test_a_failed_event_takes_its_descendants_with_it_and_its_success_brings_them_back(table: Table) -> None:
    copy = table.add("copy_image", copied(1))
    delete = table.add("delete_image", file(1), parents=[copy])
    index = table.add("index", gid(B), parents=[delete])
    other = table.add("index", gid(C))
    assert table.publish() == [copy, other]
    table.fail(copy, "ArchiveRefused: 403")
    states = table.states()
    assert states == {copy: ("failed", 1), delete: ("failed", 0), index: ("failed", 0), other: ("running", 1)}
    because = f"This event was marked as failed because an event it depended on ({copy}) had failed."
    assert [table.reasons(each) for each in (copy, delete, index)] == [["ArchiveRefused: 403"], [because], [because]]
    # As a replay of the dead letter does.
    assert table.begin(copy, 1) == []
    table.complete(copy)
    assert table.publish() == [delete]
    assert table.states()[index] == ("queued", 0)


def test_what_has_another_failed_parent_stays_failed_with_its_descendants(table: Table) -> None:
    first, second = table.add("delete_image", file(1)), table.add("delete_image", file(2, B))
    child = table.add("deindex", gid(C), parents=[first, second])
    grandchild = table.add("index", gid(D), parents=[first, child])
    table.publish()
    for parent in (first, second):
        table.fail(parent, "dead")
    table.complete(first)
    assert (table.states()[child], table.states()[grandchild]) == (("failed", 0), ("failed", 0))
    table.complete(second)
    assert (table.states()[child], table.states()[grandchild]) == (("queued", 0), ("queued", 0))


def test_the_dead_letter_of_a_completed_event_fails_nothing(table: Table) -> None:
    parent = table.add("delete_image", file(1))
    child = table.add("deindex", gid(), parents=[parent])
    table.publish()
    table.complete(parent)
    table.fail(parent, "a second message of it")
    assert table.states() == {parent: ("completed", 1), child: ("queued", 0)}
    assert table.reasons(parent) == []


def test_the_message_of_a_former_run_begins_none_while_a_later_run_goes_on(table: Table) -> None:
    event = table.add("index", gid(), state="running", attempts=3)
    assert table.begin(event, 2) is None
    assert table.states()[event] == ("running", 3)
    assert table.begin(event, 3) == []
    assert table.begin(event, 4) == []
    assert table.states()[event] == ("running", 4)


def test_a_locked_row_holds_up_the_failure_of_its_event_for_a_short_time_only(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = table.add("index", gid(), state="running", attempts=1)
    with table.db.transaction(), monkeypatch.context() as patch:
        patch.setattr(event_run, "QUICK_SECONDS", 0.1)
        table.set("state = 'running'", event)
        with pytest.raises(DatabaseUnavailable, match="timeout"):
            ArtEventRun(table.url, event).fail("dead")
    ArtEventRun(table.url, event).fail("dead")
    assert table.states()[event] == ("failed", 1)


def test_an_event_that_was_queued_again_meanwhile_is_one_event_and_what_waits_for_it_waits_for_that_one(
    table: Table,
) -> None:
    first = table.add("delete_image", file(1))
    assert table.publish() == [first]
    child, again = table.add("deindex", gid(), parents=[first]), table.add("delete_image", file(1))
    assert table.end_failed_run(first, "HTTP 503")
    assert table.states() == {first: ("completed", 1), child: ("queued", 0), again: ("queued", 0)}
    assert table.reasons(first) == ["HTTP 503", f"An equal event ({again}) is queued and takes its place."]
    assert table.publish() == [again]
    table.complete(again)
    assert table.publish() == [child]


def test_an_equal_event_that_takes_the_place_of_a_failed_one_brings_its_descendants_back(table: Table) -> None:
    copy = table.add("copy_image", copied(1))
    delete = table.add("delete_image", file(1), parents=[copy])
    table.publish()
    table.fail(copy, "dead")
    again = table.add("copy_image", copied(1))
    assert event_table.requeue(table.db, "failed", [copy]).replaced == {copy: again}
    assert table.states() == {copy: ("completed", 1), delete: ("queued", 0), again: ("queued", 0)}
    assert table.publish() == [again]
    table.complete(again)
    assert table.publish() == [delete]


def test_a_failed_descendant_that_is_queued_again_does_not_come_back_twice(table: Table) -> None:
    copy = table.add("copy_image", copied(1))
    index = table.add("index", gid(B), parents=[copy])
    table.publish()
    table.fail(copy, "dead")
    again = table.add("index", gid(B))
    table.complete(copy)
    assert (table.states()[index], table.states()[again]) == (("completed", 0), ("queued", 0))


NO_OBJECT = "index whose message is no JSON object of at most 10,000 characters and 100 levels"
#: Why an event cannot become a message: its action and its message.
WRONG = {
    ("rotate", gid(E)): "unknown action rotate",
    ("index", "{}"): "index without gid",
    ("delete_image", gid()): "delete_image without artwork_id, suffix",
    ("deindex", gid("x")): "gid 'x': expected a UUID",
    ("delete_image", f'{{"artwork_id": true, "gid": "{C}", "suffix": "jpg"}}'): "image 'True': expected an integer",
    **{
        ("index", message): NO_OBJECT
        for message in (
            *("null", "[1]", '"gid"'),
            # Too large a number, too long a text, and too many levels.
            *(f'{{"gid": "{A}", "more": {value}}}' for value in ("9" * 5_000, f'"{"x" * 20_000}"', nested(100))),
        )
    },
}


def test_an_event_that_cannot_become_a_message_fails_alone_and_names_the_reason(table: Table) -> None:
    table.db.execute("ALTER TYPE artwork_indexer.event_queue_action ADD VALUE IF NOT EXISTS 'rotate'")
    wrong = {table.add(action, message): reason for (action, message), reason in WRONG.items()}
    child, right = table.add("deindex", gid(), parents=[*wrong][:1]), table.add("index", gid(B))
    deep, noop = table.add("index", f'{{"gid": "{D}", "more": {nested(99)}}}'), table.add("noop", "null")
    assert table.publish() == [right, deep]
    assert table.states() == {
        **dict.fromkeys(wrong, ("failed", 1)),
        **{child: ("failed", 0), right: ("running", 1), deep: ("running", 1), noop: ("completed", 1)},
    }
    for event, reason in wrong.items():
        [found] = table.reasons(event)
        assert reason in found


def test_reasons_are_bounded_and_any_text_can_be_one(table: Table) -> None:
    event = table.add("index", gid())
    table.publish()
    for reason in ("x" * 1_000_000, "a\0b\ud800", *map(str, range(10))):
        table.set("state = 'running'", event)
        table.end_failed_run(event, reason)
    assert table.reasons(event)[:2] == ["x" * MAX_MESSAGE, r"a\0b\ud800"]
    other = table.add("index", gid(B), state="running")
    table.fail(other, "y" * 1_000_000)
    assert table.reasons(other) == ["y" * MAX_MESSAGE]


def test_a_lost_message_is_published_again_and_a_waiting_one_is_not(table: Table) -> None:
    events = [table.add("index", gid()), table.add("deindex", gid(C)), table.add("index", gid(B))]
    table.publish()
    lost, deindex, tried = events
    assert table.end_failed_run(tried, "HTTP 503")
    assert table.publish_lost() == []
    for event in events:
        table.set("last_updated = now() - interval '2 minutes'", event)
    # Its queue is not empty, so the message of `deindex` may wait; the third waits in the table.
    assert table.publish_lost(waiting=["cover-art-archive.delete"]) == [lost]
    assert table.publish_lost() == [deindex]
    # It cost no attempt, and a run that begins is a sign of life.
    assert table.states() == {lost: ("running", 1), deindex: ("running", 1), tried: ("queued", 1)}
    table.set("last_updated = now() - interval '2 minutes'", lost)
    table.begin(lost, 1)
    assert table.publish_lost() == []
    # One whose dead letter met no database has its last run once more, which completes the event or fails it again.
    table.set(f"attempts = {MAX_ATTEMPTS}, last_updated = '2020-01-01'", lost)
    assert table.publish_lost() == [lost]
    assert table.published[-1].headers["mb-retries"] == 0
    table.fail(lost, "dead again")
    assert table.states()[lost] == ("failed", MAX_ATTEMPTS)


@pytest.mark.parametrize("message", [f'"{random.Random(1).randbytes(9_000).hex()}"', "[" * 6_000 + "]" * 6_000])
def test_a_running_event_that_the_table_cannot_queue_fails_and_holds_up_no_other(table: Table, message: str) -> None:
    long_ago: dict[str, Any] = {"state": "running", "attempts": 1, "last_updated": "2020-01-01"}
    unfit, lost = table.add("index", message, **long_ago), table.add("index", gid(), **long_ago)
    child = table.add("deindex", gid(C), parents=[unfit])
    assert table.publish_lost() == [lost]
    assert table.states() == {unfit: ("failed", 1), lost: ("running", 1), child: ("failed", 0)}
    assert "cannot be queued again" in table.reasons(unfit)[0]
    with musicbrainz.connect(table.url) as connection:
        requeued = event_table.requeue(connection, "failed", [unfit])
    assert (requeued.ids, requeued.refused) == ((), (unfit,))
    assert str(requeued) == "0 events queued again; 1 stay failed, whose message is too long"
    assert table.states()[unfit] == ("failed", 1)


def test_completed_events_are_forgotten_90_days_after_their_creation_and_failed_ones_never(table: Table) -> None:
    old, young, failed = (table.add("index", gid(str(each) + A[1:])) for each in range(3))
    for event, state, age in ((old, "completed", 91), (young, "completed", 89), (failed, "failed", 91)):
        table.set(f"state = '{state}', created = now() - interval '{age} days'", event)
    with musicbrainz.connect(table.url) as connection:
        assert event_table.forget_completed(connection) == 1
    assert set(table.states()) == {young, failed}


def test_an_event_without_work_completes_and_one_that_asks_to_fail_does_so_to_its_limit(table: Table) -> None:
    noop, failing = table.add("noop"), table.add("noop", '{"fail": true}')
    child = table.add("index", gid(), parents=[failing])
    for attempt in range(1, MAX_ATTEMPTS + 1):
        assert table.publish() == []
        assert table.states()[failing] == ("queued" if attempt < MAX_ATTEMPTS else "failed", attempt)
        table.set("last_updated = now() - attempts * interval '1 hour'", failing)
    assert table.reasons(failing) == ["Failure (no-op)"] * MAX_ATTEMPTS
    assert (table.states()[noop], table.states()[child]) == (("completed", 1), ("failed", 0))


def test_a_reader_publishes_to_a_new_broker_at_once_when_the_database_notifies(
    table: Table, settings: Settings
) -> None:
    url = SecretStr(table.url)
    enabled = settings.model_copy(update={"musicbrainz_url": url, "art_event_queue_url": url})
    stopping = threading.Event()
    reader = threading.Thread(target=ArtEventReader(enabled, stopping=stopping).run)
    first = table.add("index", gid())
    reader.start()
    try:
        eventually(lambda: table.states()[first] == ("running", 1), "the queues are declared, the event is published")
        table.complete(first)
        second = table.add("deindex", gid())
        eventually(lambda: table.states()[second] == ("running", 1), "a notification wakes the reader")
    finally:
        stopping.set()
        reader.join()
    [index], [deindex] = (Broker(settings.broker).take(f"cover-art-archive.{kind}") for kind in ("index", "delete"))
    assert (index.headers[EVENT], deindex.headers[EVENT]) == (first, second)
    assert (index.properties["delivery_mode"], deindex.properties["delivery_mode"]) == (2, 2)


def test_an_error_of_housekeeping_holds_up_neither_new_events_nor_another_archive(
    table: Table, settings: Settings
) -> None:
    url = SecretStr(table.url)
    # The queues of cover art are not declared, so that a search for its lost events fails.
    served = {"event_art_exchange": "event-art-archive", "declare_topology": False}
    enabled = settings.model_copy(update={"musicbrainz_url": url, "art_event_queue_url": url, **served})
    with closing(Publisher(settings.broker)) as publisher:
        publisher.declare(art_queues("event-art-archive", enabled))
    lost, old = (table.add("index", gid(each), entity_type="event") for each in (A, B))
    table.set("state = 'running', last_updated = '2020-01-01'", lost)
    table.set("state = 'completed', created = '2020-01-01', last_updated = '2020-01-01'", old)
    new = table.add("deindex", gid(C), entity_type="event")
    stopping = threading.Event()
    reader = threading.Thread(target=ArtEventReader(enabled, stopping=stopping).run)
    reader.start()
    try:
        eventually(lambda: old not in table.states(), "it is forgotten in spite of the error")
    finally:
        stopping.set()
        reader.join()
    [deindex], [index] = (Broker(settings.broker).take(f"event-art-archive.{kind}") for kind in ("delete", "index"))
    assert (deindex.headers[EVENT], index.headers[EVENT]) == (new, lost)


def test_a_reader_without_a_table_does_not_start(settings: Settings) -> None:
    with pytest.raises(ArtNotServed, match="ART_EVENT_QUEUE_URL"):
        ArtEventReader(settings, stopping=threading.Event())


def test_without_musicbrainzs_database_a_job_is_postponed_and_only_its_last_free_run_is_charged(
    table: Table, settings: Settings
) -> None:
    event = table.add("index", gid(), state="running", attempts=1)
    away = settings.model_copy(update={"musicbrainz_url": SecretStr("postgresql://127.0.0.1:1/away")})
    with get_redis(settings.redis) as redis:
        indexer = Indexer.of(COVER_ART.prefix, away, redis)
        with pytest.raises(Postpone):
            ArtEventRun(table.url, event).handle(indexer, Index(A), "id", {"mb-retries": 4})
        assert (table.states()[event], table.reasons(event)) == (("running", 1), [])
        ArtEventRun(table.url, event).handle(indexer, Index(A), "id", {"mb-retries": 4, FREE_RUNS: MAX_FREE_RUNS})
        assert table.states()[event] == ("queued", 1)
        table.set("state = 'running', attempts = 5", event)
        with pytest.raises(DatabaseUnavailable):
            ArtEventRun(table.url, event).handle(indexer, Index(A), "id", {"mb-retries": 0, FREE_RUNS: MAX_FREE_RUNS})
    assert table.states()[event] == ("running", 5)
    table.set("attempts = 1", event)
    with pytest.raises(Postpone):
        ArtEventRun("postgresql://127.0.0.1:1/away", event).handle(indexer, Index(A), "id", {})
    # A primary that became a standby, and a row that is locked.
    with table.db.transaction():
        table.set("attempts = 1", event)
        for option in ("default_transaction_read_only%3Don", "lock_timeout%3D50"):
            with pytest.raises(Postpone):
                ArtEventRun(f"{table.url}&options=-c{option}", event).handle(indexer, Index(A), "id", {})


def test_the_retry_of_a_deletion_spares_an_image_that_was_moved_back(art: Art) -> None:
    art.move_image(B)
    [copy] = art.table.publish()
    art.run(copy)
    [deletion] = art.table.publish()
    art.archive.faults.add(error(400, "InvalidRequest", "no"), method="DELETE")
    art.run(deletion)
    art.move_image(A)
    [copy_back] = art.table.publish()
    art.run(copy_back)
    [deletion_there] = art.table.publish()
    art.run(deletion_there)
    art.table.set("last_updated = '2020-01-01'", deletion)
    assert deletion in art.table.publish()
    art.run(deletion)
    assert (art.files(A), art.files(B)) == ([f"mbid-{A}-1.jpg"], [])
    assert art.table.states()[deletion] == ("completed", 2)


def test_an_operators_deletion_of_an_image_that_the_database_has_fails_at_once_and_says_what_to_do(art: Art) -> None:
    deletion = art.table.add("delete_image", file(1))
    assert art.table.publish() == [deletion]
    with pytest.raises(ImageInUse, match="image 1 of release"):
        art.run(deletion)
    assert art.table.states()[deletion] == ("failed", 1)
    [reason] = art.table.reasons(deletion)
    assert "remove it there, or post a message `delete` of it" in reason
    assert art.files(A) == [f"mbid-{A}-1.jpg"]


def test_an_image_that_is_moved_back_before_its_copy_succeeds_is_in_one_item(art: Art) -> None:
    art.move_image(B)
    art.archive.faults.add(error(400, "InvalidRequest", "no"), method="PUT")
    [copy] = art.table.publish()
    art.run(copy)
    art.move_image(A)
    art.table.db.execute("DELETE FROM artwork_indexer.event_queue WHERE action = 'index'")
    # The copy back waits for the first one, which would otherwise leave the image in both items.
    for time in ("last_updated", "'2020-01-01'"):
        art.table.db.execute(f"UPDATE artwork_indexer.event_queue SET last_updated = {time} WHERE state = 'queued'")
        while ready := art.table.publish():
            for event in ready:
                art.run(event)
    assert {state for state, _ in art.table.states().values()} == {"completed"}
    assert (art.files(A), art.files(B)) == ([f"mbid-{A}-1.jpg"], [])


def test_a_late_deletion_of_a_listing_spares_that_of_a_release_with_images(art: Art) -> None:
    art.archive.upload(f"mbid-{A}", "index.json", b"{}")
    art.archive.upload(f"mbid-{B}", "index.json", b"{}")
    events = [art.table.add("deindex", gid(A)), art.table.add("deindex", gid(B))]
    assert art.table.publish() == events
    for event in events:
        art.run(event)
    assert ("index.json" in art.files(A), art.files(B)) == (True, [])
