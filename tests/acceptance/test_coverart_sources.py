"""Both sources of jobs while workers, the reader, PostgreSQL and the archive stop and come back."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from random import Random
from uuid import UUID

import psycopg
import pytest

from app.coverart import musicbrainz
from app.coverart.project import COVER_ART, listing
from app.private_services import Urls
from tests.servers.archive import ArchiveServer
from tests.servers.musicbrainz import changes, database
from tests.servers.postgres import KillablePostgres, killable_postgres
from tests.servers.site import Answer, Request, Wire
from tests.support.art import ArtSystem, art_system
from tests.support.corner import environment_of, own_vhost, settings_for
from tests.support.waiting import eventually
from tests.support.worker import Worker

pytestmark = [pytest.mark.acceptance, pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]

RELEASES, CHANGES = 20, 500

#: Where the database of each producer keeps what is to be done.
JOBS: dict[database.Producer, str] = {
    "outbox": "amqp.outbox",
    "event_queue": "artwork_indexer.event_queue WHERE state IN ('queued', 'running')",
}


class WriterCount:
    """How many requests write to an item at the same time; a late one takes up to 50 ms."""

    def __init__(self, archive: ArchiveServer) -> None:
        self.most: Counter[str] = Counter()
        self._now: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._route = archive.route
        self._chance = Random(1)
        archive.route = self.route  # type: ignore[method-assign]

    def route(self, request: Request) -> Answer:
        answer = self._route(request)
        if request.method not in ("PUT", "DELETE"):
            return answer
        bucket = request.path.split("/")[1]

        def counted(request: Request, wire: Wire) -> None:
            with self._lock:
                self._now[bucket] += 1
                self.most[bucket] = max(self.most[bucket], self._now[bucket])
            try:
                wire.pause(self._chance.uniform(0, 0.05))
            finally:
                with self._lock:
                    self._now[bucket] -= 1
            # Only now: the client may send its next request before this thread runs again.
            answer(request, wire)

        return counted


@pytest.fixture
def server() -> Iterator[KillablePostgres]:
    with killable_postgres() as running:
        yield running


@pytest.mark.parametrize("producer", ["outbox", "event_queue"])
def test_after_kills_and_restarts_no_listing_is_stale_and_no_two_writers_met(
    services: Urls, server: KillablePostgres, tmp_path: Path, producer: database.Producer
) -> None:
    gids = [str(UUID(int=number, version=4)) for number in range(1, RELEASES + 1)]
    more = {"ART_EVENT_TIMEOUT": "5", "ART_RETRY_MS": "2000", "ART_WINDOW": "0.3", "ART_RETRY_MAX": "50"}
    url = server.url
    database.install(url, producer)
    with own_vhost(services) as broker_url:
        settings = settings_for(tmp_path, broker_url, services.redis_url, services.broker_api_url)
        with art_system(settings, environment_of(settings), url, tmp_path, producer, **more) as art:
            art.add_releases(gids)
            art.database.execute(f"DELETE FROM {JOBS[producer]}")
            writers = WriterCount(art.archive)
            changing = threading.Thread(target=change, args=(url, gids))
            trouble(art, server, changing, producer)
            assert dict(writers.most) == {f"mbid-{gid}": 1 for gid in gids}
        with musicbrainz.connect(url) as connection:
            for gid in gids:
                entity = musicbrainz.entity(connection, COVER_ART, gid)
                assert entity is not None
                assert entity.images[0].comment.startswith("change ")
                assert art.archive.files(f"mbid-{gid}")["index.json"] == listing(COVER_ART, entity)
        assert art.broker.depth(art.failed) == 0


def change(url: str, gids: list[str]) -> None:
    """Make 500 changes, each committed, whatever becomes of the server."""
    for number in range(CHANGES):
        while True:
            try:
                with psycopg.connect(url) as db:
                    changes.comment_on(db, COVER_ART, number % len(gids) + 1, f"change {number}")
                break
            except psycopg.OperationalError:
                threading.Event().wait(0.1)
        threading.Event().wait(0.01)


def trouble(art: ArtSystem, server: KillablePostgres, changing: threading.Thread, producer: database.Producer) -> None:
    """Run two workers and a reader, stop each party once while changes come, and return when nothing is left."""
    former = reader(art, "killed-reader", producer)
    with former as first, art.worker("steady") as steady, art.worker("killed") as killed:
        changing.start()
        eventually(lambda: len(art.archive.requests) > 20, "work has begun", seconds=60)
        killed.kill()
        if first:
            first.process.kill()
        server.stop()
        server.start()
        with reader(art, "reader", producer), art.worker("second"):
            art.archive.before = refuse
            threading.Event().wait(3)
            art.archive.before = None
            server.stop()
            server.start()
            changing.join()
            eventually(lambda: is_quiet(art, producer), "all is done", seconds=180)
        assert steady.process.poll() is None


def reader(art: ArtSystem, name: str, producer: database.Producer) -> AbstractContextManager[Worker | None]:
    """Return the process that reads events, where the database has any."""
    return art.reader(name) if producer == "event_queue" else nullcontext()


def refuse(request: Request) -> None:
    """Break the connection, as an archive that restarts."""
    raise ConnectionError(f"{request.path}: the archive is away")


def is_quiet(art: ArtSystem, producer: database.Producer) -> bool:
    """Return whether no change waits anywhere, and no request comes for a while."""
    before = len(art.requests())
    threading.Event().wait(2)
    with psycopg.connect(art.environment["MUSICBRAINZ_URL"]) as db:
        left = db.execute(f"SELECT FROM {JOBS[producer]} LIMIT 1").fetchone()
    return left is None and not art.waiting() and len(art.requests()) == before
