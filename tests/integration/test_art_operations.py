"""An operator's view of the event queue, and acts on it: its state, what is requeued and handed back, and a pause."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest
from pydantic import SecretStr
from redis import Redis
from typer.testing import CliRunner

from app.broker.dead_letters import DeadSets
from app.broker.outgoing import Outgoing
from app.cli.main import cli
from app.coverart import event_table
from app.coverart.event_publisher import ArtEventPublisher
from app.coverart.event_state import ReaderStatus, event_queue_state
from app.coverart.event_table import MAX_ATTEMPTS
from app.coverart.jobs import EVENT
from app.coverart.project import COVER_ART
from app.errors import ActRefused, ArtNotServed
from app.messages.art_event_reader import ArtEventReader
from app.operations import art
from app.operations.context import OperatorContext
from app.operations.doctor.check import CheckContext
from app.operations.doctor.checks import event_queue, outages
from app.operations.operators import command_operator
from app.topology.declare import declare_all
from config.settings import Settings, get_settings
from tests.servers.musicbrainz import changes, database
from tests.support.broker import Broker
from tests.support.declared import DeclaredVhost
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

A, B, C = (f"0a000000-0000-4000-8000-00000000000{number}" for number in range(3))


@dataclass(frozen=True)
class Desk:
    """What an operator has: the operations, and the table."""

    ops: OperatorContext
    db: changes.Db

    def add(self, gid: str, *, action: str = "index", entity: str = "release", **columns: Any) -> int:
        return changes.queue_event(self.db, action, json.dumps({"gid": gid}), entity_type=entity, **columns)

    def fail(self, gid: str, reason: str, **columns: Any) -> int:
        event = self.add(gid, **{"state": "failed", "attempts": MAX_ATTEMPTS, **columns})
        self.db.execute("INSERT INTO artwork_indexer.event_failure_reason VALUES (%s, %s)", (event, reason))
        return event

    def states(self) -> dict[int, tuple[str, int]]:
        return changes.event_states(self.db)

    @property
    def status(self) -> ReaderStatus:
        return ReaderStatus(self.ops.redis)

    def problems(self) -> list[str]:
        """Return what the doctor says of the table, without what is right."""
        found = event_queue(CheckContext(self.ops.settings))
        return [result.text for result in found if result.status != "ok"]


@pytest.fixture
def broker_url(declared_vhost: DeclaredVhost) -> Iterator[str]:
    with declared_vhost.lent() as url:
        yield url


@pytest.fixture(scope="module")
def database_url(event_queue_template: tuple[str, str]) -> Iterator[str]:
    with database.copy_of(*event_queue_template) as url:
        yield url


@pytest.fixture
def desk(database_url: str, settings: Settings, redis: Redis) -> Iterator[Desk]:
    redis.flushdb()
    url = SecretStr(database_url)
    served = settings.model_copy(update={"musicbrainz_url": url, "art_event_queue_url": url, "event_art_exchange": ""})
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("DELETE FROM artwork_indexer.event_queue")
        yield Desk(OperatorContext(served, command_operator()), db)


def test_the_state_names_a_dead_reader_old_events_events_that_no_archive_serves_and_failures_by_reason(
    desk: Desk,
) -> None:
    desk.add(A, created="2020-01-01")
    desk.add(B, state="running", attempts=1)
    desk.add(C, entity="event")
    desk.fail(A, "ArchiveRefused: 400: one")
    desk.fail(B, "ArchiveRefused: 400: two")
    desk.fail(C, "This event was marked as failed because an event it depended on (7) had failed.")
    state = event_queue_state(desk.ops.settings)
    assert state is not None
    releases, events = state.entities
    assert (releases.queued, releases.running, events.queued) == (1, 1, 1)
    because = "This event was marked as failed because an event it depended on (N) had failed."
    assert releases.failed == {"ArchiveRefused": 2, because: 1}
    silent, old, unserved, failed = desk.problems()
    assert silent == "no event reader runs (last sign of life: never), and 2 events wait"
    assert old.startswith("an event of the type release has waited for")
    assert unserved.startswith("1 events of the type event wait, and no archive serves them")
    assert failed.startswith("3 failed events of the type release (2 ArchiveRefused, 1 This")
    desk.status.touch()
    desk.status.set_paused(True)
    assert [text.split(":")[0] for text in desk.problems()][1] == "the event reader is paused"


def test_a_database_that_does_not_answer_or_may_not_be_read_is_a_problem(desk: Desk) -> None:
    desk.db.execute("CREATE ROLE stranger LOGIN")
    stranger = desk.ops.settings.musicbrainz_url.get_secret_value().replace("://musicbrainz@", "://stranger@")
    for url, reason in (("postgresql://127.0.0.1:1/away", "127.0.0.1"), (stranger, "permission denied")):
        given = dict.fromkeys(("musicbrainz_url", "art_event_queue_url"), SecretStr(url))
        found = list(outages(desk.ops.settings.model_copy(update=given)))[-2:]
        assert [(each.check, each.status) for each in found] == [("MusicBrainz", "problem"), ("event queue", "problem")]
        assert all(reason in each.text for each in found)
    desk.db.execute("DROP ROLE stranger")


def test_a_requeued_event_has_all_its_runs_again_and_its_dead_letter_is_gone(
    desk: Desk, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare_all(connection, desk.ops.settings)
    first, second, queued = desk.fail(A, "one"), desk.fail(B, "two"), desk.add(C)
    twin = desk.add(B)
    broker = Broker(desk.ops.settings.broker)
    for event in (first, second, 99):
        broker.post(A.encode(), exchange="cover-art-archive.failed", key="index", headers={EVENT: event})
    with pytest.raises(ActRefused, match=f"event {queued} is queued, and not failed"):
        art.requeue(desk.ops, [first, queued])
    with pytest.raises(ActRefused, match=f"event {twin + 1}: the table does not have it"):
        art.requeue(desk.ops, [twin + 1])
    without = desk.ops.settings.model_copy(update={"art_event_queue_url": SecretStr("")})
    with pytest.raises(ArtNotServed, match="ART_EVENT_QUEUE_URL is empty"):
        art.requeue(OperatorContext(without, command_operator()), None)
    assert art.requeue(desk.ops, None, dry_run=True).ids == (first, second)
    assert desk.states()[first] == ("failed", MAX_ATTEMPTS)
    with monkeypatch.context() as killed:
        killed.setattr(DeadSets, "forget", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            art.requeue(desk.ops, None)
    assert next(desk.ops.audit.entries()).result == "failed: KeyboardInterrupt"
    assert desk.states()[first] == ("failed", MAX_ATTEMPTS)
    done = art.requeue(desk.ops, None)
    assert (done.ids, done.replaced) == ((first, second), {second: twin})
    assert desk.states() == {
        first: ("queued", 0),
        second: ("completed", MAX_ATTEMPTS),
        queued: ("queued", 0),
        twin: ("queued", 0),
    }
    left = broker.take("cover-art-archive.failed")
    assert [letter.headers[EVENT] for letter in left] == [99]


def test_events_that_a_reader_publishes_while_it_is_paused_are_handed_back_too(desk: Desk) -> None:
    event = desk.add(A)
    handing_back = threading.Thread(target=art.hand_back, args=[desk.ops])

    def publish(_: Sequence[Outgoing]) -> None:
        desk.status.set_paused(True)
        handing_back.start()
        handing_back.join(0.5)

    reader = ArtEventPublisher(COVER_ART, publish, backoff=0, is_paused=desk.status.is_paused)
    with event_table.connect(desk.ops.settings.art_event_queue_url.get_secret_value()) as connection:
        assert reader.publish_ready(connection) == 1
        handing_back.join()
        assert desk.states() == {event: ("queued", 0)}
        assert reader.publish_ready(connection) == 0


def test_running_events_are_handed_back_ready_for_another_indexer_and_equal_ones_become_one(desk: Desk) -> None:
    fresh = desk.add(A, state="running", attempts=1)
    tried = desk.add(B, state="running", attempts=3)
    replaced = desk.add(C, state="running", attempts=1)
    child = desk.add(A, action="deindex", depends_on=[replaced])
    twin = desk.add(C)
    desk.status.touch()
    assert art.hand_back(desk.ops, dry_run=True).ids == (fresh, tried, replaced)
    with pytest.raises(ActRefused, match="pause"):
        art.hand_back(desk.ops)
    desk.status.set_paused(True)
    assert art.hand_back(desk.ops).replaced == {replaced: twin}
    assert desk.states() == {
        fresh: ("queued", 0),
        tried: ("queued", 2),
        replaced: ("completed", 1),
        child: ("queued", 0),
        twin: ("queued", 0),
    }
    # As artwork-indexer looks for events that are ready.
    ready = desk.db.execute(
        "SELECT id FROM artwork_indexer.event_queue WHERE state = 'queued' AND depends_on IS NULL"
        " AND last_updated <= now() - attempts * interval '1 hour' ORDER BY id"
    ).fetchall()
    assert [id for (id,) in ready] == [fresh, tried, twin]
    parents = desk.db.execute("SELECT depends_on FROM artwork_indexer.event_queue WHERE id = %s", (child,)).fetchone()
    assert parents == ([twin],)


@contextmanager
def running_reader(settings: Settings) -> Iterator[None]:
    """Run a reader in a thread for the block."""
    stopping = threading.Event()
    thread = threading.Thread(target=ArtEventReader(settings, stopping=stopping).run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def test_a_paused_reader_publishes_nothing_and_a_resumed_one_goes_on(desk: Desk) -> None:
    art.steer_reader(desk.ops, paused=True, why="the other indexer runs")
    event = desk.add(A)
    with running_reader(desk.ops.settings):
        eventually(lambda: desk.status.seconds_silent() is not None, "it has read the table")
        assert desk.states()[event] == ("queued", 0)
        art.steer_reader(desk.ops, paused=False)
        desk.db.execute("NOTIFY artwork_indexer_event_queue")
        eventually(lambda: desk.states()[event] == ("running", 1), "it is published")


def test_without_redis_which_may_have_a_pause_no_event_is_published(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    event = desk.add(A)
    with running_reader(desk.ops.settings.model_copy(update={"redis_url": SecretStr("redis://127.0.0.1:1/0")})):
        eventually(lambda: "Events wait in their table" in caplog.text, "the reader reports it")
    assert desk.states()[event] == ("queued", 0)


def test_the_commands_print_what_they_did_and_the_state(
    desk: Desk, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = desk.ops.settings.art_event_queue_url.get_secret_value()
    for name, value in {**environment, "MUSICBRAINZ_URL": url, "ART_EVENT_QUEUE_URL": url}.items():
        monkeypatch.setenv(name, value)
    get_settings.cache_clear()

    def run(*arguments: str) -> str:
        return CliRunner().invoke(cli, arguments).output

    failed, running = desk.fail(A, "ArchiveRefused: 400: \x1b[2J"), desk.add(B, state="running", attempts=1)
    try:
        assert f"{failed}\trelease\tindex\t5\t" in run("caa", "events", "list")
        assert "failed: ArchiveRefused: 400:  [2J" in run("caa", "events", "show", str(failed))
        assert "would be: 1 events queued again" in run("caa", "events", "requeue", "--all", "--dry-run")
        assert "give IDs, or --all" in run("caa", "events", "requeue")
        assert "paused" in run("caa", "events", "pause")
        status = run("status")
        assert "events of the type release: 0 queued; 1 running; 1 failed" in status
        assert "no event reader runs" in status
        assert json.loads(run("caa", "handback", "--json"))["ids"] == [running]
        listed = run("caa", "events", "list", "--state", "queued").split("\t")
        assert (listed[3], listed[5:]) == ("0", ["", f'{{"gid": "{B}"}}\n'])
        assert "resumed" in run("caa", "events", "resume")
    finally:
        get_settings.cache_clear()
