"""Plain art messages under a real worker: whatever they carry they are served, and none overwrites a newer listing."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import pytest

from app.coverart.project import COVER_ART
from app.private_services import Urls
from config.settings import ROOT
from tests.servers.musicbrainz import changes
from tests.servers.site import Request, Wire
from tests.support.art import ArtSystem, art_corner
from tests.support.waiting import eventually
from tests.support.worker import Worker

pytestmark = pytest.mark.acceptance


@pytest.fixture(scope="module")
def art(
    services: Urls, musicbrainz_template: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ArtSystem]:
    """One corner for all tests here: each has items of its own, and takes its dead away."""
    folder = tmp_path_factory.mktemp("coverart")
    with art_corner(services, musicbrainz_template, folder, ART_WINDOW="1") as system:
        yield system


@pytest.fixture(scope="module")
def running(art: ArtSystem) -> Iterator[Worker]:
    with art.worker() as running:
        yield running


@pytest.fixture
def gid() -> str:
    return str(uuid.uuid4())


def listing_of(gid: str) -> str:
    return f"/mbid-{gid}/index.json"


# From Python. It comes before the worker of the other tests, which would take the messages.

CALLS = """
import sys
from app.errors import InvalidJob
from tasks.coverart import delete, index, move

gid, other = sys.argv[1:]
print(index.delay(gid.upper()).id)
move.delay(1, gid, new_gid=other)
delete.delay(gid)
delete.apply_async((gid, 7), {"suffix": "png"}, confirm=True)
index.s(gid).apply_async(task_id="mine")
index.delay(other, archive="cover-art-archive")
for call in (
    lambda: index.delay("x"),
    lambda: index.delay(),
    lambda: move.delay(1, gid, gid, "jpg", 5),
    lambda: index.delay(gid, archive="nowhere"),
    lambda: index.apply_async((gid,), countdown=3),
):
    try:
        call()
    except InvalidJob as error:
        print(error)
"""


def test_a_call_from_python_posts_the_plain_message_and_a_bad_one_is_refused(art: ArtSystem, gid: str) -> None:
    other = str(uuid.uuid4())
    command = [sys.executable, "-c", CALLS, gid, other]
    done = subprocess.run(command, cwd=ROOT, env=art.environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    ident, *refusals = done.stdout.splitlines()
    assert refusals == [
        "gid 'x': expected a UUID",
        "index(gid): missing a required argument: 'gid'",
        "move(id, old_gid, new_gid, suffix='jpg'): too many positional arguments",
        "archive 'nowhere' is not served here; served: cover-art-archive, event-art-archive",
        "coverart.index: a plain message cannot carry countdown",
    ]
    sent = {kind: art.broker.take(f"cover-art-archive.{kind}") for kind in ("index", "move", "delete")}
    bodies = {kind: [bytes(each.body) for each in messages] for kind, messages in sent.items()}
    assert bodies == {
        "index": [gid.encode(), gid.encode(), other.encode()],
        "move": [f"1\n{gid}\n{other}\njpg\n".encode()],
        "delete": [f"index.json\n{gid}".encode(), f"7\n{gid}\npng".encode()],
    }
    for each in (each for messages in sent.values() for each in messages):
        assert not each.headers
        assert set(each.properties) - {"application_headers"} == {"delivery_mode", "message_id"}
        assert each.properties["delivery_mode"] == 2
        assert each.content_type is None
    assert [each.properties["message_id"] for each in sent["index"]][:2] == [ident, "mine"]


# What may come

X_DEATH = {
    "count": 3,
    "reason": "expired",
    "queue": "cover-art-archive.retry",
    "time": datetime(2024, 1, 2, tzinfo=UTC),
    "exchange": "cover-art-archive.retry",
    "routing-keys": ["delete"],
}
PROPERTIES: dict[str, dict[str, Any]] = {
    "no property at all": {},
    "JSON, it says": {"content_type": "application/json", "content_encoding": "utf-8"},
    "a pickle, it says": {"content_type": "application/x-python-serialize", "content_encoding": "binary"},
    "x-death": {"headers": {"x-death": [X_DEATH], "x-first-death-reason": "expired"}},
    "mb-retries is a number": {"headers": {"mb-retries": 2}},
    "mb-retries is negative": {"headers": {"mb-retries": -1}},
    "mb-retries is garbage": {"headers": {"mb-retries": "lots"}},
    "mb-retries is a table": {"headers": {"mb-retries": {"a": 1}}},
    "as the Perl indexer retries": {
        "headers": {"mb-retries": "3", "mb-exceptions": ["Error PUTting: 503"], "x-death": [X_DEATH]},
        "priority": 1,
        "timestamp": 1_704_153_600,
        "delivery_mode": 1,
        "content_type": "application/octet-stream",
    },
}


def test_messages_are_served_whatever_they_carry(art: ArtSystem, running: Worker) -> None:
    gids = {case: str(uuid.uuid4()) for case in PROPERTIES}
    for case, properties in PROPERTIES.items():
        user = {"user_id": urlsplit(art.environment["BROKER_URL"]).username or "guest"} if "Perl" in case else {}
        art.post("delete", f"index.json\n{gids[case]}".encode(), **properties, **user)
    for case, gid in gids.items():
        eventually(lambda gid=gid: art.archive.hits(listing_of(gid)) == 1, f"served: {case}")  # type: ignore[misc]


def test_an_older_listing_never_overwrites_a_newer_one(art: ArtSystem, running: Worker, gid: str) -> None:
    begun = threading.Event()

    def late(request: Request, wire: Wire) -> None:
        begun.set()
        wire.pause(2)
        art.archive.route(request)(request, wire)

    with art.database.transaction():
        art.add_releases([gid])
        art.database.execute("DELETE FROM amqp.outbox")
    art.archive.faults.add(late, method="PUT", path=listing_of(gid))
    changes.comment_on(art.database, COVER_ART, 1, "older")
    assert begun.wait(30)
    # Its window is over before the older one is written.
    changes.comment_on(art.database, COVER_ART, 1, "newer")
    eventually(lambda: art.archive.hits(listing_of(gid)) == 2, "the newer one is written, too")
    older, newer = (each for each in art.archive.requests if each.path == listing_of(gid))
    assert b"older" in older.body
    assert newer.at - older.at >= 2
    assert art.listing(gid)["images"][0]["comment"] == "newer"
