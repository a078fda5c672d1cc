"""A worker on a broker that the document's own indexer has used before: its topology, its four hours, and outages."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kombu import Connection

from app.broker.publishing import Publisher
from app.coverart.jobs import Delete, message
from app.coverart.outages import FREE_RUNS, MAX_FREE_RUNS
from app.coverart.project import COVER_ART, EVENT_ART, Project
from app.private_services import Urls
from tests.servers import archive as stand_in
from tests.servers.archive import ACCESS_KEY, SECRET_KEY
from tests.servers.faults import Faults
from tests.servers.musicbrainz import changes
from tests.servers.musicbrainz_ws import busy
from tests.servers.site import Answer
from tests.support.art import ArtSystem, art_corner
from tests.support.broker import given_arguments
from tests.support.waiting import eventually
from tests.support.worker import Worker

pytestmark = pytest.mark.acceptance

FOUR_HOURS = 14_400_000

#: Messages that wait during a fault.
MESSAGES = 20

RETRY = "cover-art-archive.retry"


def declare_as_the_document_says(channel: Any, name: str) -> None:
    """Declare what an indexer declares that is not ours."""
    durable = {"durable": True, "auto_delete": False}
    channel.exchange_declare(name, "direct", **durable)
    for end in ("retry", "failed"):
        channel.exchange_declare(f"{name}.{end}", "fanout", **durable)
    arguments = {"x-message-ttl": FOUR_HOURS, "x-dead-letter-exchange": name}
    channel.queue_declare(f"{name}.retry", arguments=arguments, **durable)
    channel.queue_declare(f"{name}.failed", **durable)
    for end in ("retry", "failed"):
        channel.queue_bind(f"{name}.{end}", f"{name}.{end}", "")
    for key in ("index", "move", "delete"):
        channel.queue_declare(f"{name}.{key}", **durable)
        channel.queue_bind(f"{name}.{key}", name, key)


@pytest.fixture(scope="module")
def art(
    services: Urls, musicbrainz_template: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ArtSystem]:
    """One system for all tests, with both archives and the document's own numbers: each has items of its own.

    A message that spends a retry stays in the retry queue.
    """
    more = {"EVENT_ART_EXCHANGE": "event-art-archive", "ART_RETRY_MS": str(FOUR_HOURS), "PGAPPNAME": "worker"}
    more |= {"ART_WINDOW": "0", "ART_OUTAGE_PAUSE": "0.3"}
    with art_corner(services, musicbrainz_template, tmp_path_factory.mktemp("document"), **more) as system:
        with Connection(system.environment["BROKER_URL"]) as connection, connection.channel() as channel:
            for project in (COVER_ART, EVENT_ART):
                declare_as_the_document_says(channel, project.prefix)
        yield system


@pytest.fixture(scope="module")
def before(art: ArtSystem) -> list[tuple[str, str]]:
    return topology(art)


@pytest.fixture(scope="module")
def worker(art: ArtSystem, before: list[tuple[str, str]]) -> Iterator[Worker]:
    with art.worker("document", projects=(COVER_ART, EVENT_ART)) as running:
        yield running


def topology(art: ArtSystem) -> list[tuple[str, str]]:
    """Return name and arguments of every queue of the archives, and of their exchanges the type, too."""
    found = [*art.on_broker("queues"), *art.on_broker("exchanges")]
    return sorted(
        (each["name"], f"{each.get('type')} {each['durable']} {each['auto_delete']} {each['arguments']}")
        for each in found
        if each["name"].startswith(("cover-art-archive", "event-art-archive")) and ".delay." not in each["name"]
    )


def test_a_worker_starts_and_changes_nothing(art: ArtSystem, before: list[tuple[str, str]], worker: Worker) -> None:
    assert len(before) == 16
    assert topology(art) == before
    assert "PRECONDITION_FAILED" not in worker.log
    [retry] = [each for each in art.on_broker("queues") if each["name"] == RETRY]
    assert given_arguments(retry) == {"x-message-ttl": FOUR_HOURS, "x-dead-letter-exchange": "cover-art-archive"}


def test_covers_and_events_are_served_by_one_worker(art: ArtSystem, worker: Worker) -> None:
    db = art.database
    release, event = str(uuid.uuid4()), str(uuid.uuid4())
    art.web_service.set_entity("release", release, "Kind of Blue")
    art.web_service.set_entity("event", event, "Newport")
    with db.transaction():
        changes.add_release(db, "Kind of Blue", changes.add_artist(db, "Miles Davis"), gid=release)
        changes.add_cover(db, release, 1)
        changes.add_event(db, "Newport", gid=event)
        changes.add_art(db, EVENT_ART, event, 2, mime_type="image/png", types=(1,))
    eventually(
        lambda: f"mbid-{release}_mb_metadata.xml" in art.archive.files(f"mbid-{release}"), "the release is indexed"
    )
    eventually(lambda: f"mbid-{event}_mb_metadata.xml" in art.archive.files(f"mbid-{event}"), "the event is indexed")
    assert collection(art, release) == "coverartarchive"
    assert collection(art, event) == "eventartarchive"
    assert art.listing(release)["images"][0]["back"] is False
    assert art.listing(event)["images"][0]["types"] == ["Poster"]
    put = next(each for each in art.archive.requests if each.path == f"/mbid-{event}/index.json")
    assert put.headers["authorization"] == f"LOW {ACCESS_KEY}:{SECRET_KEY}"
    assert f"/ws/2/event/{event}?inc=artist-rels+place-rels" in art.web_service.paths()


def collection(art: ArtSystem, gid: str) -> str:
    item = art.archive.item(f"mbid-{gid}")
    assert item is not None
    return item.metadata["collection"]


@pytest.mark.parametrize("project", [COVER_ART, EVENT_ART], ids=lambda project: project.entity)
def test_a_failure_without_a_retry_left_is_dead_lettered_with_its_routing_key(
    art: ArtSystem, worker: Worker, project: Project
) -> None:
    prefix = project.prefix
    art.broker.post(b"no gid", exchange=prefix, key="index", headers={"mb-retries": 0})
    eventually(lambda: art.broker.depth(f"{prefix}.failed") == 1, "it failed, not four hours later")
    [message] = art.broker.take(f"{prefix}.failed")
    assert message.headers["mb-retries"] == -1
    assert len(message.headers["mb-exceptions"]) == 1
    assert (bytes(message.body), message.delivery_info["routing_key"]) == (b"no gid", "index")


def test_a_failure_that_a_retry_can_fix_waits_four_hours(art: ArtSystem, worker: Worker) -> None:
    with art.database.transaction():
        release = changes.add_release(art.database, "x", changes.add_artist(art.database, "x"))
        changes.add_cover(art.database, release, 77)
        art.database.execute("TRUNCATE amqp.outbox")
    missing = f"77\n{uuid.uuid4()}\n{release}\njpg\n".encode()
    art.post("move", missing)
    eventually(lambda: art.broker.depth(RETRY) == 1, "it waits")
    [message] = art.broker.take(RETRY)
    assert (bytes(message.body), message.delivery_info["routing_key"]) == (missing, "move")
    assert message.headers["mb-retries"] == 3
    assert "neither it nor " in message.headers["mb-exceptions"][0]


# Outages


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
def test_an_outage_costs_no_retry_and_all_messages_wait(art: ArtSystem, worker: Worker, fault: str) -> None:
    assert run_fault(art, worker, fault) == 0


def test_no_key_is_in_a_dead_letter_or_a_log(art: ArtSystem, worker: Worker) -> None:
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
