"""A worker on a broker that the document's own indexer has used before: its topology, its four hours, an outage."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from kombu import Connection

from app.broker.publishing import Publisher
from app.coverart.jobs import Delete, message
from app.coverart.project import COVER_ART, EVENT_ART
from app.private_services import Urls
from tests.servers import archive as stand_in
from tests.servers.musicbrainz import changes
from tests.support.art import ArtSystem, art_corner
from tests.support.broker import given_arguments
from tests.support.waiting import eventually
from tests.support.worker import Worker

pytestmark = pytest.mark.acceptance

FOUR_HOURS = 14_400_000

#: Messages that wait during the fault.
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
    more = {"EVENT_ART_EXCHANGE": "event-art-archive", "ART_RETRY_MS": str(FOUR_HOURS)}
    more |= {"ART_WINDOW": "0", "RETRY_TIMEOUT_MS": "300"}
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


def test_while_the_archive_refuses_the_keys_all_messages_wait_and_no_retry_is_spent(
    art: ArtSystem, worker: Worker
) -> None:
    jobs = [Delete(str(uuid.uuid4()), 1) for _ in range(MESSAGES)]
    art.archive.faults.add(stand_in.denied(), times=1_000_000)
    with closing(Publisher(art.environment["BROKER_URL"])) as publisher:
        publisher.publish([message(job, "cover-art-archive", str(uuid.uuid4())) for job in jobs])
    eventually(lambda: worker.log.count("Circuit breaker of the ") >= 2, "a trial has failed", seconds=120)
    requested = len(art.archive.requests)
    art.archive.faults.clear()
    paths = {f"/mbid-{job.gid}/mbid-{job.gid}-1.jpg" for job in jobs}
    eventually(lambda: paths <= set(art.archive.paths()[requested:]), "all are done", seconds=60)
    assert art.broker.depths([RETRY, art.failed]) == [0, 0]
