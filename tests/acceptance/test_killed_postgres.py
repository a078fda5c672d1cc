"""PostgreSQL is killed while events are published, run and recorded: none is lost or stays running."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit
from uuid import UUID

import pytest
from pydantic import SecretStr

from app.coverart import musicbrainz
from app.coverart.project import COVER_ART, listing
from app.errors import ServicesError
from app.machine import tail, wait_until
from app.operations.doctor.check import CheckContext
from app.operations.doctor.checks import event_queue
from app.private_services import Urls, service
from tests.servers import postgres
from tests.servers.musicbrainz import database
from tests.servers.postgres import KillablePostgres, killable_postgres
from tests.servers.site import Request
from tests.support.art import ArtSystem, art_system
from tests.support.corner import environment_of, own_vhost, settings_for
from tests.support.programs import program
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]


@contextmanager
def pooled(url: str) -> Iterator[str]:
    """Run a pooler before the PostgreSQL of `url` for the block; yield the URL of the same database through it.

    Each transaction may get another session of the server, of which there are two.
    """
    [server] = parse_qs(urlsplit(url).query)["host"]
    command = [program("pgbouncer", "pgbouncer"), "pgbouncer.ini"]
    with postgres.server_folder() as folder:
        (folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={server} user={postgres.USER}\n[pgbouncer]\npool_mode = transaction\n"
            f"default_pool_size = 2\nauth_type = any\nlisten_addr =\nunix_socket_dir = {folder}\n"
        )
        child = service.start(
            postgres.as_server_user(command), directory=folder, env=postgres.environment(), log=folder / "log"
        )
        through = urlsplit(url)._replace(query=f"host={quote(str(folder), safe='')}&port=6432").geturl()
        try:
            if not wait_until(lambda: postgres.answers(through), 30):
                raise ServicesError(f"pgbouncer did not start; its log ends with:\n{tail(folder / 'log')}")
            yield through
        finally:
            child.terminate()
            child.wait()
            service.reap()


GIDS = [str(UUID(int=number, version=4)) for number in range(1, 21)]


@pytest.fixture
def server() -> Iterator[KillablePostgres]:
    with killable_postgres() as running:
        database.install(running.url, "event_queue")
        yield running


def test_after_a_kill_of_postgresql_every_event_completes_and_no_attempt_was_charged(
    services: Urls, server: KillablePostgres, tmp_path: Path
) -> None:
    in_work, go_on = threading.Semaphore(0), threading.Event()

    def hold(request: Request) -> None:
        """Keep the first requests until PostgreSQL is dead, so that their jobs end without it."""
        if request.method == "PUT":
            in_work.release()
            go_on.wait(30)

    with own_vhost(services) as broker_url, ExitStack() as stack:
        settings = settings_for(tmp_path, broker_url, services.redis_url, services.broker_api_url)
        environment = environment_of(settings)
        art = stack.enter_context(art_system(settings, environment, server.url, tmp_path, "event_queue"))
        art.add_releases(GIDS)
        art.archive.before = hold
        reader = stack.enter_context(art.reader())
        worker = stack.enter_context(art.worker())
        # Two jobs are in the middle, others are published, and the rest is queued.
        assert in_work.acquire(timeout=30)
        assert in_work.acquire(timeout=30)
        server.kill()
        go_on.set()
        eventually(lambda: "Events wait in their table" in reader.log, "the reader has lost the database")
        eventually(lambda: sum(postponed(art)) >= 2, "jobs wait that could not record their end")
        art.post("index", GIDS[0].encode())
        server.start()
        eventually(lambda: states(server.url) == {("completed", 1)}, "all events are completed", seconds=60)
        eventually(lambda: not art.waiting(), "no message is left")
        assert art.broker.depth(art.failed) == 0
        with musicbrainz.connect(server.url) as connection:
            assert connection.execute("SELECT count(*) FROM artwork_indexer.event_failure_reason").fetchone() == (0,)
            for gid in GIDS:
                entity = musicbrainz.entity(connection, COVER_ART, gid)
                assert entity is not None
                assert art.archive.files(f"mbid-{gid}")["index.json"] == listing(COVER_ART, entity)
        assert (reader.process.poll(), worker.process.poll()) == (None, None)


def test_through_a_pooler_in_transaction_mode_events_are_read_run_and_recorded(
    services: Urls, event_queue_template: tuple[str, str], tmp_path: Path
) -> None:
    with database.copy_of(*event_queue_template) as url, pooled(url) as through, own_vhost(services) as broker_url:
        settings = settings_for(tmp_path, broker_url, services.redis_url, services.broker_api_url)
        with art_system(settings, environment_of(settings), through, tmp_path, "event_queue") as art:
            with art.reader(), art.worker():
                # Without a notification the reader polls.
                art.add_releases(GIDS[:3])
                eventually(lambda: states(url) == {("completed", 1)}, "all events are completed", seconds=60)
            for one, is_pooled in ((through, True), (url, False)):
                checked = settings.model_copy(update={"art_event_queue_url": SecretStr(one)})
                texts = " ".join(each.text for each in event_queue(CheckContext(checked)))
                assert ("leads through a pooler" in texts) is is_pooled
            assert [art.images(gid) for gid in GIDS[:3]] == [[1], [2], [3]]


def postponed(art: ArtSystem) -> list[int]:
    """Return how many messages wait in each delay queue; none may be in the retry queue, which spends an attempt."""
    waiting = art.waiting()
    assert "cover-art-archive.retry" not in waiting
    return [depth for name, depth in waiting.items() if name not in art.queues]


def states(url: str) -> set[tuple[str, int]]:
    with musicbrainz.connect(url) as connection:
        rows = connection.execute("SELECT DISTINCT state::text, attempts FROM artwork_indexer.event_queue")
        return {(str(state), int(attempts)) for state, attempts in rows}
