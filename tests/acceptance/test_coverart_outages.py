"""Outages under a real worker, with a ledger of the retries that they cost: none."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from app.broker.publishing import Publisher
from app.coverart.jobs import Delete, message
from app.coverart.outages import FREE_RUNS, MAX_FREE_RUNS
from app.private_services import Urls
from tests.servers import archive as stand_in
from tests.servers.archive import ACCESS_KEY, SECRET_KEY
from tests.servers.faults import Faults
from tests.servers.musicbrainz import changes
from tests.servers.musicbrainz_ws import busy
from tests.servers.site import Answer
from tests.support.art import ArtSystem, art_corner
from tests.support.waiting import eventually
from tests.support.worker import Worker

pytestmark = pytest.mark.acceptance

#: Messages that wait during a fault.
MESSAGES = 20

RETRY = "cover-art-archive.retry"


@pytest.fixture(scope="module")
def running(
    services: Urls, musicbrainz_template: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ArtSystem, Worker]]:
    """One system for all tests: each has items of its own. A message that spends a retry stays in the retry queue."""
    folder = tmp_path_factory.mktemp("outages")
    fixed = {"ART_RETRY_MS": "14400000", "ART_WINDOW": "0", "ART_OUTAGE_PAUSE": "0.3", "PGAPPNAME": "worker"}
    with art_corner(services, musicbrainz_template, folder, **fixed) as system, system.worker() as worker:
        yield system, worker


@contextmanager
def answering(faults: Faults, answer: Answer) -> Iterator[None]:
    """Have a server give one answer to every request of the block."""
    faults.add(answer, times=1_000_000)
    try:
        yield
    finally:
        faults.clear()


@contextmanager
def database_away(art: ArtSystem) -> Iterator[None]:
    """Hide the socket that PostgreSQL listens on, and end the connections that the worker keeps."""
    [folder] = parse_qs(urlsplit(art.environment["MUSICBRAINZ_URL"]).query)["host"]
    [socket] = [each for each in Path(folder).glob(".s.PGSQL.*") if each.suffix != ".lock"]
    hidden = socket.rename(socket.with_name("hidden"))
    art.database.execute(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'worker'"
    )
    try:
        yield
    finally:
        hidden.rename(socket)


#: What brings each fault about. Further ones of each service are in tests/integration/test_coverart_outages.py.
FAULTS: dict[str, Callable[[ArtSystem], AbstractContextManager[None]]] = {
    "archive": lambda art: answering(art.archive.faults, stand_in.denied()),
    "web service": lambda art: answering(art.web_service.faults, busy("1")),
    "database": database_away,
}

#: The services without which only `index` cannot run.
FOR_INDEX = ("web service", "database")


def post(art: ArtSystem, kind: str, count: int) -> set[str]:
    """Post jobs for as many items at once; return the paths whose requests show that they are done."""
    if kind == "index":
        gids = [_release_with_art(art) for _ in range(count)]
        return {f"/mbid-{gid}/mbid-{gid}_mb_metadata.xml" for gid in gids}
    jobs = [Delete(str(uuid.uuid4()), 1) for _ in range(count)]
    with closing(Publisher(art.environment["BROKER_URL"])) as publisher:
        publisher.publish([message(job, "cover-art-archive", str(uuid.uuid4())) for job in jobs])
    return {f"/mbid-{job.gid}/mbid-{job.gid}-1.jpg" for job in jobs}


def _release_with_art(art: ArtSystem) -> str:
    """Add a release with an image; the database's triggers post its `index` messages."""
    gid = changes.add_release(art.database, "x", changes.add_artist(art.database, "Miles Davis"))
    art.web_service.set_entity("release", gid, "x")
    changes.add_cover(art.database, gid, uuid.uuid4().int >> 66)
    return gid


def charged(art: ArtSystem) -> list[str]:
    """Take the messages that spent a retry out of their queue; return their bodies."""
    return [bytes(each.body).decode() for each in art.broker.take(RETRY)]


def run_fault(art: ArtSystem, worker: Worker, fault: str) -> int:
    """Bring a fault about while MESSAGES wait; return the retries that it cost."""
    kind = "index" if fault in FOR_INDEX else "delete"
    queue = f"cover-art-archive.{kind}"
    eventually(lambda: art.broker.consumers(queue) == 1, "the worker consumes")
    opened = worker.log.count("Circuit breaker of the ")
    served = len(art.archive.requests)
    with FAULTS[fault](art):
        paths = post(art, kind, MESSAGES)
        eventually(lambda: worker.log.count("Circuit breaker of the ") >= opened + 2, "a trial has failed", seconds=120)
        requested = len(art.archive.requests) - served
    spent = charged(art)
    left = {path for path in paths if not any(path[len("/mbid-") :][:36] in body for body in spent)}
    eventually(lambda: left <= written(art, served + requested), "all others are done", seconds=60)
    assert charged(art) == []
    assert art.broker.depth(art.failed) == 0
    return len(spent)


def written(art: ArtSystem, after: int) -> set[str]:
    """Return the paths of all requests to the archive but the first ones."""
    return set(art.archive.paths()[after:])


@pytest.mark.parametrize("fault", FAULTS)
def test_an_outage_costs_no_retry_and_all_messages_wait(running: tuple[ArtSystem, Worker], fault: str) -> None:
    art, worker = running
    assert run_fault(art, worker, fault) == 0


def test_no_key_is_in_a_dead_letter_or_a_log(running: tuple[ArtSystem, Worker]) -> None:
    art, worker = running
    gid = str(uuid.uuid4())
    header = f"LOW {ACCESS_KEY}:{SECRET_KEY}"
    art.archive.faults.add(stand_in.error(500, "InternalError", f"bad request: {header}"), path=f"/mbid-{gid}/*")
    art.post("delete", f"1\n{gid}\njpg".encode(), headers={"mb-retries": 0, FREE_RUNS: MAX_FREE_RUNS})
    eventually(lambda: art.broker.depth(art.failed) == 1, "it is dead")
    [letter] = art.broker.take(art.failed)
    everything = json.dumps(letter.headers, default=str)
    assert "InternalError: bad request: LOW ********:********" in everything
    for text in (everything, worker.log):
        assert SECRET_KEY not in text
