"""A real streaming standby whose replay is paused, in place of MusicBrainz's primary: nothing is computed from it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from pydantic import SecretStr

from app.broker.errors import Postpone
from app.coverart.event_record import EventRecord, run_event
from app.coverart.indexer import Indexer
from app.coverart.jobs import EVENT, Index
from app.coverart.musicbrainz import connect, entity
from app.coverart.project import COVER_ART, listing
from app.errors import DatabaseUnavailable
from app.messages.event_reader import EventReader
from app.state.client import get_redis
from config.settings import Settings
from tests.servers.archive import ACCESS_KEY, SECRET_KEY, ArchiveServer
from tests.servers.musicbrainz import changes, database
from tests.servers.musicbrainz_ws import MusicBrainz
from tests.servers.postgres import pause_replay, standby_of
from tests.support.broker import Broker
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


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
        update = {
            "musicbrainz_ws_url": web_service.ws_url,
            "archive_url": archive.path_url,
            "archive_public_url": archive.public_url,
            "archive_access_key": SecretStr(ACCESS_KEY),
            "archive_secret_key": SecretStr(SECRET_KEY),
        }
        yield Art(archive, settings.model_copy(update=update))


def both(pair: Pair) -> str:
    """Return a URL of both servers, the standby first."""
    folders = [parse_qs(urlsplit(url).query)["host"][0] for url in (pair.standby, pair.primary)]
    return urlsplit(pair.primary)._replace(query=f"host={','.join(folders)}").geturl()


def test_a_listing_is_never_computed_from_a_standby_and_its_job_waits_for_the_primary(pair: Pair, art: Art) -> None:
    with connect(pair.standby) as connection:
        stale = entity(connection, COVER_ART, pair.gid)
    assert stale is not None
    assert stale.images == ()
    indexer = art.indexer(pair.standby)
    with pytest.raises(Postpone, match="the primary is needed, and this is a standby"):
        indexer.handle(Index(pair.gid), "id", {})
    assert art.archive.requests == []
    art.indexer(both(pair)).handle(Index(pair.gid), "id", {})
    assert art.archive.files(f"mbid-{pair.gid}")["index.json"] == pair.listing()


def test_the_job_of_an_event_is_not_computed_from_a_standby_and_costs_no_attempt(pair: Pair, art: Art) -> None:
    event = pair.queue()
    record = EventRecord(pair.primary, event)
    with pytest.raises(Postpone, match="the primary is needed"):
        run_event(record, art.indexer(pair.standby), Index(pair.gid), "id", {"mb-retries": 4})
    assert (pair.state(event), art.archive.requests) == (("running", 0), [])
    with pytest.raises(Postpone, match="the primary is needed"):
        run_event(replace(record, url=pair.standby), art.indexer(pair.primary), Index(pair.gid), "id", {})
    run_event(record, art.indexer(both(pair)), Index(pair.gid), "id", {"mb-retries": 4})
    assert pair.state(event) == ("completed", 0)
    assert art.archive.files(f"mbid-{pair.gid}")["index.json"] == pair.listing()


def test_a_reader_waits_at_a_standby_and_publishes_when_that_is_promoted(pair: Pair, settings: Settings) -> None:
    event = pair.queue()
    urls = dict.fromkeys(("musicbrainz_url", "event_queue_url"), SecretStr(pair.standby))
    stopping = threading.Event()
    reader = EventReader(settings.model_copy(update=urls), stopping=stopping)
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
