"""Reading a real PostgreSQL that looks like MusicBrainz, also one that is a standby: images, and what goes wrong."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import get_args
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from pydantic import SecretStr

from app.broker.errors import Postpone
from app.coverart import musicbrainz
from app.coverart.event_run import ArtEventRun
from app.coverart.indexer import Indexer
from app.coverart.jobs import EVENT, Index
from app.coverart.musicbrainz import (
    GidKind,
    connect,
    count_gids,
    entities,
    entity,
    gids_of_images,
    kept_connection,
    next_gids,
)
from app.coverart.project import COVER_ART, EVENT_ART, PROJECTS, Entity, Image, Project, listing
from app.errors import DatabaseFailed, DatabaseUnavailable
from app.messages.art_event_reader import ArtEventReader
from app.redis_state.client import get_redis
from config.settings import Settings
from tests.servers.archive import ArchiveServer
from tests.servers.musicbrainz import changes, database
from tests.servers.musicbrainz_ws import MusicBrainz
from tests.servers.postgres import hanging, pause_replay, standby_of
from tests.support.broker import Broker
from tests.support.command import as_process_with, invoked
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

FRONT, BACK, BOOKLET, MEDIUM, SPINE = 1, 2, 3, 4, 6


@pytest.fixture
def db(musicbrainz_url: str) -> Iterator[changes.Db]:
    """Yield an editor's connection; each statement is committed at once."""
    with psycopg.connect(musicbrainz_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def gid(db: changes.Db) -> str:
    """Return a release without images."""
    return changes.add_release(db, "Kind of Blue", changes.add_artist(db, "Miles Davis"))


def read(url: str, gid: str, project: Project = COVER_ART) -> Entity:
    with connect(url) as connection:
        found = entity(connection, project, gid)
    assert found is not None
    return found


def another(db: changes.Db, project: Project = COVER_ART) -> str:
    return changes.add_event(db, "x") if project is EVENT_ART else changes.add_release(db, "x", 1)


def ids(found: Entity) -> list[int]:
    return [image.id for image in found.images]


def test_images_come_in_their_order_with_all_that_a_listing_says(
    musicbrainz_url: str, db: changes.Db, gid: str
) -> None:
    first = changes.add_art(db, COVER_ART, gid, 7_000_000_001, types=(BACK, FRONT), comment="both “sides”")
    second = changes.add_art(db, COVER_ART, gid, 42, mime_type="application/pdf", types=(BOOKLET,), approved=False)
    third = changes.add_art(db, COVER_ART, gid, 7, mime_type="image/png")
    assert read(musicbrainz_url, gid) == Entity(
        gid=gid,
        images=(
            Image(7_000_000_001, "jpg", "both “sides”", first, True, True, True, ("Front", "Back")),
            Image(42, "pdf", "", second, False, False, False, ("Booklet",)),
            Image(7, "png", "", third, True, False, False, ()),
        ),
    )
    changes.put_at(db, COVER_ART, 7, 1)
    changes.put_at(db, COVER_ART, 7_000_000_001, 9)
    assert ids(read(musicbrainz_url, gid)) == [7, 42, 7_000_000_001]


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.entity)
def test_a_gid_that_was_merged_away_leads_to_where_it_went_over_any_number_of_merges(
    musicbrainz_url: str, db: changes.Db, gid: str, project: Project
) -> None:
    first, second, third = (another(db, project) for _ in range(3))
    for number, each in enumerate((first, second, third), start=1):
        changes.add_art(db, project, each, number)
    changes.merge(db, project, first, second)
    changes.merge(db, project, second, third)
    found = read(musicbrainz_url, first, project)
    assert (found.gid, ids(found)) == (third, [3, 2, 1])
    assert read(musicbrainz_url, second.upper(), project) == read(musicbrainz_url, third, project) == found
    with connect(musicbrainz_url) as connection:
        assert next_gids("merged", connection, project) == sorted([first, second])


def test_a_missing_entity_is_none_and_one_without_images_has_no_images(
    musicbrainz_url: str, db: changes.Db, gid: str
) -> None:
    gone = another(db)
    changes.merge(db, COVER_ART, another(db), gone)
    changes.delete(db, COVER_ART, gone)
    with connect(musicbrainz_url) as connection:
        assert entity(connection, COVER_ART, gone) is None
        assert entity(connection, EVENT_ART, gid) is None
        assert entity(connection, COVER_ART, gid) == Entity(gid, ())


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.entity)
def test_what_an_audit_reads_deleted_gids_pages_of_entities_changes_and_descriptions(
    musicbrainz_url: str, db: changes.Db, gid: str, project: Project
) -> None:
    first, merged, deleted, kept = sorted(another(db, project) for _ in range(4))
    changes.add_art(db, project, merged, 1)
    changes.merge(db, project, merged, kept)
    changes.delete(db, project, deleted)
    with connect(musicbrainz_url) as connection:
        assert next_gids("deleted", connection, project) == [deleted]
        assert next_gids("deleted", connection, project, after=deleted) == []
        assert [count_gids(kind, connection, project) for kind in get_args(GidKind)] == [1, 1, 1]
        found = entities(connection, project, [first, merged.upper(), deleted])
        assert {each: (entity.gid, ids(entity)) for each, entity in found.items()} == {
            first: (first, []),
            merged.upper(): (kept, [1]),
        }
        [merge] = found[merged.upper()].merged
        assert (merge.gid, 0 <= merge.age < 600) == (merged, True)
        before = found[first].changed
        changes.rename(db, project, first, "Renamed")
        after = entities(connection, project, [first])[first].changed
        assert after > before > 1_600_000_000
        changes.rename_artist(db, 1, "Miles")
        assert (entities(connection, project, [first])[first].changed > after) is (project is COVER_ART)


def test_all_gids_are_those_with_images_in_their_order_each_once(
    musicbrainz_url: str, db: changes.Db, gid: str
) -> None:
    gids = sorted(another(db) for _ in range(5))
    for number, each in enumerate(gids):
        changes.add_art(db, COVER_ART, each, 2 * number)
        changes.add_art(db, COVER_ART, each, 2 * number + 1)
    with connect(musicbrainz_url) as connection:
        assert next_gids("with_art", connection, COVER_ART) == gids
        assert next_gids("with_art", connection, COVER_ART, after=gids[1], limit=2) == gids[2:4]
        assert count_gids("with_art", connection, COVER_ART, after=gids[1]) == 3
        assert next_gids("with_art", connection, EVENT_ART) == []
        changes.merge(db, COVER_ART, gids[0], gids[1])
        assert [count_gids(kind, connection, COVER_ART) for kind in get_args(GidKind)] == [4, 1, 0]
        assert next_gids("merged", connection, COVER_ART, after=gids[0]) == []


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.entity)
def test_homes_says_where_images_are_now(musicbrainz_url: str, db: changes.Db, gid: str, project: Project) -> None:
    first, second = another(db, project), another(db, project)
    changes.add_art(db, project, first, 1)
    changes.add_art(db, project, second, 7_000_000_002)
    with connect(musicbrainz_url) as connection:
        assert gids_of_images(connection, project, [1, 7_000_000_002, 3]) == {1: first, 7_000_000_002: second}
        changes.merge(db, project, first, second)
        assert gids_of_images(connection, project, {1}) == {1: second}
        assert gids_of_images(connection, project, []) == {}


def test_a_read_shows_one_moment_while_images_change_places(musicbrainz_url: str, db: changes.Db, gid: str) -> None:
    for image in (1, 2):
        changes.add_art(db, COVER_ART, gid, image, types=(FRONT,) if image == 1 else ())
    enough, swaps, seen = threading.Event(), [0], set[object]()

    def swap() -> None:
        while not enough.is_set():
            turn = swaps[0]
            with db.transaction():
                changes.set_types(db, COVER_ART, 1 + turn % 2, [])
                changes.set_types(db, COVER_ART, 2 - turn % 2, [FRONT])
            swaps[0] += 1

    def both_are_seen() -> bool:
        found = entity(connection, COVER_ART, gid)
        assert found is not None
        seen.add(tuple((image.front, image.types) for image in found.images))
        return swaps[0] >= 150 and len(seen) > 1

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        with connect(musicbrainz_url) as connection:
            eventually(both_are_seen, "images change places while they are read", every=0)
    finally:
        enough.set()
        swapping.join()
    front, other = (True, ("Front",)), (False, ())
    assert seen == {(front, other), (other, front)}


def test_a_database_that_cannot_be_reached_is_named_without_the_password() -> None:
    url = "postgresql://reader:hush-hush@127.0.0.1:1/musicbrainz_db"
    with pytest.raises(DatabaseUnavailable, match=r"'musicbrainz_db' at 127\.0\.0\.1.*refused") as raised, connect(url):
        pass
    assert "hush" not in f"{raised.value!r} {raised.value.__cause__!r}"
    assert not raised.value.permanent


def test_a_url_may_have_options_of_its_own(musicbrainz_url: str, gid: str) -> None:
    options = "connect_timeout=7&client_encoding=LATIN1"
    with connect(f"{musicbrainz_url}{'&' if '?' in musicbrainz_url else '?'}{options}") as connection:
        assert connection.info.encoding == "utf-8"
        assert entity(connection, COVER_ART, gid) is not None


def test_a_read_that_takes_too_long_is_an_outage(
    musicbrainz_url: str, db: changes.Db, gid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(musicbrainz, "READ_SECONDS", 0.2)
    # A query of an earlier test has the time limit of then.
    monkeypatch.setattr(musicbrainz, "_query", musicbrainz._query.__wrapped__)
    with db.transaction():
        db.execute("LOCK TABLE musicbrainz.release IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(DatabaseUnavailable, match="statement timeout"), connect(musicbrainz_url) as connection:
            entity(connection, COVER_ART, gid)


def test_a_server_that_hangs_holds_up_no_process_for_long_and_is_an_outage(
    musicbrainz_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(musicbrainz, "_FRESH", 0)
    url = f"{musicbrainz_url}&connect_timeout=5"

    def answer(*, hangs: bool) -> object:
        with kept_connection(url) as connection, connection.transaction(), hung() if hangs else nullcontext():
            row = connection.execute("SELECT pg_backend_pid()").fetchone()
            return row[0] if row else None

    @contextmanager
    def hung() -> Iterator[None]:
        # A query of a server that does not hang may take longer.
        with hanging(musicbrainz_url), monkeypatch.context() as impatient:
            impatient.setattr(musicbrainz, "_RESULT_SECONDS", 0.5)
            yield

    # No time limit of a statement ends earlier.
    assert max(musicbrainz.READ_SECONDS, musicbrainz.COUNT_SECONDS) < musicbrainz._RESULT_SECONDS
    first = answer(hangs=False)
    assert answer(hangs=False) == first
    with pytest.raises(DatabaseUnavailable, match=r"no result in 0\.5 s"):
        answer(hangs=True)
    second = answer(hangs=False)
    assert second not in (None, first)
    # The kept connection is checked first, and then a new one is tried.
    with hung(), pytest.raises(DatabaseUnavailable, match="timeout"):
        answer(hangs=False)
    assert answer(hangs=False) not in (None, first, second)


def test_jobs_of_a_process_share_a_connection_that_is_replaced_when_it_broke_and_never_left_in_a_transaction(
    musicbrainz_url: str, db: changes.Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(musicbrainz, "_FRESH", 0)

    def pid() -> int:
        with kept_connection(musicbrainz_url) as connection:
            return connection.info.backend_pid

    first = pid()
    assert pid() == first
    db.execute("SELECT pg_terminate_backend(%s, 10000)", (first,))
    second = pid()
    assert second != first
    with kept_connection(musicbrainz_url) as connection:
        # Another thread, which meanwhile needs one, gets its own.
        other = pid()
        assert other not in (first, second)
        connection.execute("BEGIN")
    assert pid() == other
    with pytest.raises(DatabaseFailed), kept_connection(musicbrainz_url) as connection, connection.transaction():
        connection.execute("SELECT 1 / 0")
    assert pid() == other


def test_an_answer_that_something_is_wrong_is_no_outage(musicbrainz_url: str, db: changes.Db, gid: str) -> None:
    db.execute("DROP VIEW cover_art_archive.index_listing")
    with pytest.raises(DatabaseFailed, match="index_listing") as raised, connect(musicbrainz_url) as connection:
        entity(connection, COVER_ART, gid)
    assert not isinstance(raised.value, DatabaseUnavailable)


def test_a_reader_may_have_no_right_but_to_read(musicbrainz_url: str, db: changes.Db, gid: str) -> None:
    changes.add_cover(db, gid, 1)
    role = f"reader_{gid[:8]}"
    db.execute(f"CREATE ROLE {role} LOGIN")
    try:
        for schema in ("musicbrainz", "cover_art_archive"):
            db.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
            db.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
        assert ids(read(musicbrainz_url.replace("://musicbrainz@", f"://{role}@"), gid)) == [1]
    finally:
        db.execute(f"DROP OWNED BY {role}")
        db.execute(f"DROP ROLE {role}")


@dataclass(frozen=True)
class Pair:
    """A primary and its standby. The standby has a release, and has replayed nothing since this got its image."""

    primary: str
    standby: str
    db: changes.Db
    gid: str

    def queue(self) -> int:
        """Queue an `index` event of the release on the primary, and return its id."""
        changes.comment_on(self.db, COVER_ART, 1, str(uuid.uuid4()))
        row = self.db.execute("SELECT max(id) FROM artwork_indexer.event_queue").fetchone()
        assert row is not None
        return int(row[0])

    def state(self, event: int) -> tuple[str, int]:
        [row] = self.db.execute("SELECT state::text, attempts FROM artwork_indexer.event_queue WHERE id = %s", (event,))
        return str(row[0]), int(row[1])

    def listing(self) -> bytes:
        """Return the listing by the primary."""
        with connect(self.primary) as connection:
            present = entity(connection, COVER_ART, self.gid)
        assert present is not None
        return listing(COVER_ART, present)


@pytest.fixture(scope="module")
def pair(event_queue_template: tuple[str, str]) -> Iterator[Pair]:
    with database.copy_of(*event_queue_template) as primary, psycopg.connect(primary, autocommit=True) as db:
        gid = changes.add_release(db, "Kind of Blue", changes.add_artist(db, "Miles Davis"))
        with standby_of(primary) as standby:
            pause_replay(standby)
            changes.add_cover(db, gid, 1)
            yield Pair(primary, standby, db, gid)


@dataclass(frozen=True)
class Art:
    archive: ArchiveServer
    settings: Settings

    def indexer(self, musicbrainz_url: str) -> Indexer:
        """Return an indexer without a coalescing window that reads this database."""
        settings = self.settings.model_copy(update={"musicbrainz_url": SecretStr(musicbrainz_url), "art_window": 0.0})
        return Indexer.of(COVER_ART.prefix, settings, get_redis(self.settings.redis))


@pytest.fixture
def art(pair: Pair, settings: Settings) -> Iterator[Art]:
    with ArchiveServer() as archive, MusicBrainz() as web_service:
        web_service.set_entity("release", pair.gid, "Kind of Blue")
        update = {"musicbrainz_ws_url": web_service.ws_url, **archive.settings}
        yield Art(archive, settings.model_copy(update=update))


def both(pair: Pair) -> str:
    """Return a URL of both servers, the standby first."""
    folders = [parse_qs(urlsplit(url).query)["host"][0] for url in (pair.standby, pair.primary)]
    return urlsplit(pair.primary)._replace(query=f"host={','.join(folders)}").geturl()


def test_the_job_of_an_event_is_not_computed_from_a_standby_and_costs_no_attempt(pair: Pair, art: Art) -> None:
    event = pair.queue()
    pair.db.execute("UPDATE artwork_indexer.event_queue SET state = 'running', attempts = 1 WHERE id = %s", (event,))
    run = ArtEventRun(pair.primary, event)
    with pytest.raises(Postpone, match="the primary is needed"):
        run.handle(art.indexer(pair.standby), Index(pair.gid), "id", {"mb-retries": 4})
    assert (pair.state(event), art.archive.requests) == (("running", 1), [])
    with pytest.raises(Postpone, match="the primary is needed"):
        replace(run, url=pair.standby).handle(art.indexer(pair.primary), Index(pair.gid), "id", {})
    run.handle(art.indexer(both(pair)), Index(pair.gid), "id", {"mb-retries": 4})
    assert pair.state(event) == ("completed", 1)
    assert art.archive.files(f"mbid-{pair.gid}")["index.json"] == pair.listing()


def test_nothing_is_repaired_by_what_a_lagging_standby_has(pair: Pair, art: Art, environment: dict[str, str]) -> None:
    # By the standby, this image is superfluous.
    file = COVER_ART.image_file(pair.gid, 1, "jpg")
    art.archive.upload(COVER_ART.bucket(pair.gid), file, b"picture")
    places = {"MUSICBRAINZ_URL": pair.standby, "ARCHIVE_PUBLIC_URL": art.archive.public_url}
    with as_process_with({**environment, **places}):
        with pytest.raises(DatabaseUnavailable, match="the primary is needed, and this is a standby"):
            invoked("caa", "audit", "--fix", "--yes", pair.gid)
        assert f"image-left\t{file}\tdelete" in invoked("caa", "audit", pair.gid, exit_code=1)


def test_a_reader_waits_at_a_standby_and_publishes_when_that_is_promoted(pair: Pair, settings: Settings) -> None:
    event = pair.queue()
    urls = dict.fromkeys(("musicbrainz_url", "art_event_queue_url"), SecretStr(pair.standby))
    stopping = threading.Event()
    reader = ArtEventReader(settings.model_copy(update=urls), stopping=stopping)
    with pytest.raises(DatabaseUnavailable, match="this is a standby"), connect(pair.standby, primary=True):
        pass
    running = threading.Thread(target=reader.run)
    running.start()
    broker = Broker(settings.broker)
    try:
        with psycopg.connect(pair.standby, autocommit=True) as replica:
            replica.execute("SELECT pg_wal_replay_resume()")
            found = "SELECT state::text FROM artwork_indexer.event_queue WHERE id = %s"
            eventually(lambda: replica.execute(found, (event,)).fetchone() == ("queued",), "the event is replayed")
            replica.execute("SELECT pg_promote()")
            eventually(lambda: replica.execute(found, (event,)).fetchone() == ("running",), "it is published")
    finally:
        stopping.set()
        running.join()
    assert [each.headers[EVENT] for each in broker.take("cover-art-archive.index")][-1] == event
